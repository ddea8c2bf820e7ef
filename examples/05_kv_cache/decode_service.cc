#include "examples/05_kv_cache/decode_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/05_kv_cache/content.h"

namespace verbena::examples {
namespace {

constexpr absl::Duration kReleaseMax = absl::Seconds(10);
// Layers whose bytes are on their way at once: while one is copied, the next is asked for.
constexpr size_t kPullsMax = 4;

// One layer on its way: the parcel holds the lease until the bytes are in place.
struct Pull {
  Parcel<kv::LayerReply> reply;
  Call<Tensor> fetch;
};

}  // namespace

absl::Status DecodeService::Generate(ServerContext&, const kv::Prompt& prompt,
                                     kv::Generated& reply) {
  VERBENA_ASSIGN_OR_RETURN(kv::CountReply before, prefill_.CountPages(kv::CountRequest()).Get());
  VERBENA_ASSIGN_OR_RETURN(kv::Begun begun, prefill_.Begin(prompt).Get());
  if (begun.layers() != pages_.layers() || begun.block_bytes() != pages_.block_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the prefill server has ", begun.layers(), " layers of blocks of ", begun.block_bytes(),
        " bytes, these pages are for ", pages_.layers(), " of ", pages_.block_bytes()));
  }
  VERBENA_ASSIGN_OR_RETURN(const std::vector<int64_t> table, pages_.TakeScattered(prompt.blocks()));
  const absl::Cleanup free_pages = [&] { pages_.Free(table); };
  VERBENA_RETURN_IF_ERROR(PullAll(begun, table, reply));
  VERBENA_RETURN_IF_ERROR(CheckAll(prompt, table));
  reply.set_bytes(uint64_t{prompt.blocks()} * begun.layers() * begun.block_bytes());
  return WaitForFree(before.free());
}

absl::Status DecodeService::PullAll(const kv::Begun& begun, const std::vector<int64_t>& table,
                                    kv::Generated& reply) const {
  const absl::Time start = absl::Now();
  // All layers are asked for at once; each reply comes when its layer is computed.
  std::atomic<bool> last_there = false;
  std::deque<Call<Parcel<kv::LayerReply>>> asked;
  kv::LayerRequest request;
  request.set_sequence(begun.sequence());
  for (uint32_t layer = 0; layer < begun.layers(); ++layer) {
    request.set_layer(layer);
    asked.push_back(prefill_.Layer(request));
  }
  std::deque<Pull> pulls;
  const auto finish_one = [&]() -> absl::Status {
    Pull& pull = pulls.front();
    VERBENA_RETURN_IF_ERROR(pull.fetch.Get().status());
    reply.set_path(std::string(PathName(pull.fetch.report().path)));
    if (!asked.empty() && !asked.back().done()) reply.set_early(reply.early() + 1);
    pulls.pop_front();  // the lease ends, and the prefill server has its pages back
    return absl::OkStatus();
  };
  for (uint32_t layer = 0; layer < begun.layers(); ++layer) {
    VERBENA_ASSIGN_OR_RETURN(Parcel<kv::LayerReply> blocks, asked.front().Get());
    asked.pop_front();
    // Block i of the sequence becomes page table[i] of this layer, whatever used that page before.
    Placement pages = Placement::IntoRows(pages_.layer(layer), table);
    if (place_.gpu != nullptr) pages.InStream(place_.gpu->stream());
    Call<Tensor> fetch = blocks.Fetch(blocks->blocks(), pages);
    pulls.push_back({std::move(blocks), std::move(fetch)});
    if (layer + 1 == begun.layers()) {
      // Read but for the last: not one page of the run may be free yet.
      VERBENA_ASSIGN_OR_RETURN(kv::CountReply now, prefill_.CountPages(kv::CountRequest()).Get());
      if (now.free() + table.size() > now.all()) {
        return absl::FailedPreconditionError("pages are free before they were read");
      }
    }
    while (pulls.size() >= kPullsMax) VERBENA_RETURN_IF_ERROR(finish_one());
  }
  while (!pulls.empty()) VERBENA_RETURN_IF_ERROR(finish_one());
  reply.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  return absl::OkStatus();
}

absl::Status DecodeService::CheckAll(const kv::Prompt& prompt,
                                     const std::vector<int64_t>& table) const {
  const size_t block_words = pages_.block_bytes() / sizeof(uint32_t);
  std::vector<uint32_t> words(pages_.count() * block_words);
  for (uint32_t layer = 0; layer < pages_.layers(); ++layer) {
    const Tensor& all = pages_.layer(layer);
    if (place_.gpu != nullptr) {
      VERBENA_RETURN_IF_ERROR(place_.gpu->CopyToHost(words.data(), all.data(), all.bytes()));
    } else {
      std::copy_n(reinterpret_cast<const uint32_t*>(all.data()), words.size(), words.data());
    }
    for (size_t block = 0; block < table.size(); ++block) {
      const auto page = absl::MakeConstSpan(words).subspan(
          static_cast<size_t>(table[block]) * block_words, block_words);
      const size_t wrong =
          WrongBytes(page, prompt.seed(), layer, static_cast<uint32_t>(block * block_words));
      if (wrong != 0) {
        return absl::DataLossError(absl::StrCat(wrong, " wrong bytes in block ", block,
                                                " of layer ", layer, ", page ", table[block]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeService::WaitForFree(uint32_t free) const {
  const absl::Time end = absl::Now() + kReleaseMax;
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(kv::CountReply now, prefill_.CountPages(kv::CountRequest()).Get());
    if (now.free() >= free) return absl::OkStatus();
    if (absl::Now() > end) {
      return absl::DataLossError(
          absl::StrCat(free - now.free(), " pages were read and are not free"));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace verbena::examples
