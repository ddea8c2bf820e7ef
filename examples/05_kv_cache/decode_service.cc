#include "examples/05_kv_cache/decode_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/05_kv_cache/content.h"

namespace verbena::examples {
namespace {

constexpr absl::Duration kReleaseMax = absl::Seconds(10);
// Layers whose bytes are on their way at once: while one is copied, the next is asked for.
constexpr size_t kPullsMax = 4;

}  // namespace

Task<absl::Status> DecodeService::Generate(ServerContext&, const kv::Prompt& prompt,
                                           kv::Generated& reply) {
  if (prompt.blocks() == 0) co_return absl::InvalidArgumentError("a prompt of no blocks");
  VERBENA_CO_ASSIGN_OR_RETURN(const kv::CountReply before,
                              co_await prefill_.CountPages(kv::CountRequest()));
  VERBENA_CO_ASSIGN_OR_RETURN(std::vector<int64_t> table, pages_.TakeScattered(prompt.blocks()));
  const absl::Status pulled = co_await Pull(prompt, table, reply);
  if (!pulled.ok()) {
    pages_.Free(table);
    co_return pulled;
  }
  absl::MutexLock lock(&mutex_);
  reply.set_sequence(++last_);
  sequences_[last_] = {prompt, std::move(table), before.free()};
  co_return absl::OkStatus();
}

Task<absl::Status> DecodeService::Pull(const kv::Prompt& prompt, const std::vector<int64_t>& table,
                                       kv::Generated& reply) const {
  VERBENA_CO_ASSIGN_OR_RETURN(const kv::Begun begun, co_await prefill_.Begin(prompt));
  if (begun.layers() != pages_.layers() || begun.block_bytes() != pages_.block_bytes()) {
    co_return absl::FailedPreconditionError(absl::StrCat(
        "the prefill server has ", begun.layers(), " layers of blocks of ", begun.block_bytes(),
        " bytes, these pages are for ", pages_.layers(), " of ", pages_.block_bytes()));
  }
  reply.set_bytes(uint64_t{prompt.blocks()} * begun.layers() * begun.block_bytes());
  co_return co_await PullAll(begun, table, reply);
}

Task<absl::Status> DecodeService::PullAll(const kv::Begun& begun, const std::vector<int64_t>& table,
                                          kv::Generated& reply) const {
  std::deque<LayerPull> pulls;
  const absl::Status pulled = co_await PullLayers(begun, table, pulls, reply);
  // A fetch that is dropped may write for a while: the pages are not free before it has ended.
  for (LayerPull& pull : pulls) (co_await pull.fetch).IgnoreError();
  co_return pulled;
}

Task<absl::Status> DecodeService::PullLayers(const kv::Begun& begun,
                                             const std::vector<int64_t>& table,
                                             std::deque<LayerPull>& pulls,
                                             kv::Generated& reply) const {
  const absl::Time start = absl::Now();
  // All layers are asked for at once; each reply comes when its layer is computed.
  std::deque<Call<Parcel<kv::LayerReply>>> asked;
  kv::LayerRequest request;
  request.set_sequence(begun.sequence());
  for (uint32_t layer = 0; layer < begun.layers(); ++layer) {
    request.set_layer(layer);
    asked.push_back(prefill_.Layer(request));
  }
  for (uint32_t layer = 0; layer < begun.layers() || !pulls.empty(); ++layer) {
    if (layer < begun.layers()) {
      VERBENA_CO_ASSIGN_OR_RETURN(Parcel<kv::LayerReply> blocks, co_await asked.front());
      asked.pop_front();
      // Block i of the sequence becomes page table[i] of this layer, whatever used that before.
      Placement pages = Placement::IntoRows(pages_.layer(layer), table);
      if (place_.gpu != nullptr) pages.InStream(place_.gpu->stream());
      Call<Tensor> fetch = blocks.Fetch(blocks->blocks(), pages);
      pulls.push_back({std::move(blocks), std::move(fetch)});
      if (pulls.size() < kPullsMax && !asked.empty()) continue;
    }
    if (layer + 1 == begun.layers()) {
      // The last layers are not read yet: not one page of the run may be free.
      VERBENA_CO_ASSIGN_OR_RETURN(const kv::CountReply now,
                                  co_await prefill_.CountPages(kv::CountRequest()));
      if (now.free() + table.size() > now.all()) {
        co_return absl::FailedPreconditionError("pages are free before they were read");
      }
    }
    LayerPull& pull = pulls.front();
    VERBENA_CO_RETURN_IF_ERROR((co_await pull.fetch).status());
    reply.set_path(std::string(PathName(pull.fetch.report().path)));
    if (!asked.empty() && !asked.back().done()) reply.set_early(reply.early() + 1);
    pulls.pop_front();  // the lease ends, and the prefill server has its pages back
  }
  reply.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  co_return absl::OkStatus();
}

absl::Status DecodeService::Check(ServerContext&, const kv::CheckRequest& request,
                                  kv::CheckReply&) {
  Sequence sequence;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sequences_.find(request.sequence());
    if (found == sequences_.end()) {
      return absl::NotFoundError(absl::StrCat("sequence ", request.sequence(), " is not here"));
    }
    sequence = std::move(found->second);
    sequences_.erase(found);
  }
  const absl::Status right = CheckAll(sequence);
  pages_.Free(sequence.table);
  return right.ok() ? WaitForFree(sequence.prefill_free) : right;
}

absl::Status DecodeService::CheckAll(const Sequence& sequence) const {
  const std::vector<int64_t>& table = sequence.table;
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
      const size_t wrong = WrongBytes(page, sequence.prompt.seed(), layer,
                                      static_cast<uint32_t>(block * block_words));
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
