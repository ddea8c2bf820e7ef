#include "examples/05_kv_cache/prefill_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/05_kv_cache/content.h"

namespace verbena::examples {

PrefillService::~PrefillService() {
  std::vector<std::thread> computers;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [number, sequence] : sequences_) computers.push_back(std::move(sequence->computer));
  }
  for (std::thread& computer : computers) {
    if (computer.joinable()) computer.join();
  }
}

absl::Status PrefillService::Begin(ServerContext&, const kv::Prompt& prompt, kv::Begun& reply) {
  if (prompt.blocks() == 0) return absl::InvalidArgumentError("a prompt of no blocks");
  DropIdle();
  VERBENA_ASSIGN_OR_RETURN(std::vector<int64_t> taken, pages_.TakeRun(prompt.blocks()));
  // The run is free again when the last layer's tensor is gone.
  const std::shared_ptr<std::vector<int64_t>> run(new std::vector<int64_t>(std::move(taken)),
                                                  [this](std::vector<int64_t>* pages) {
                                                    pages_.Free(*pages);
                                                    delete pages;
                                                  });
  std::vector<Tensor> blocks;
  for (uint32_t layer = 0; layer < pages_.layers(); ++layer) {
    VERBENA_ASSIGN_OR_RETURN(Tensor tensor, BlocksOf(layer, run));
    blocks.push_back(std::move(tensor));
  }
  const auto sequence = std::make_shared<Sequence>();
  absl::MutexLock lock(&mutex_);
  if (place_.gpu == nullptr) {
    sequence->computer =
        std::thread(&PrefillService::ComputeAll, this, sequence, prompt.seed(), std::move(blocks));
  } else {
    for (uint32_t layer = 0; layer < pages_.layers(); ++layer) {
      VERBENA_ASSIGN_OR_RETURN(Tensor queued,
                               Compute(layer, prompt.seed(), std::move(blocks[layer])));
      sequence->layers.push_back(std::move(queued));
    }
  }
  sequence->asked = absl::Now();
  sequences_[++last_] = sequence;
  reply.set_sequence(last_);
  reply.set_layers(pages_.layers());
  reply.set_block_bytes(pages_.block_bytes());
  return absl::OkStatus();
}

void PrefillService::DropIdle() {
  std::vector<std::shared_ptr<Sequence>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time before = absl::Now() - options_.idle_max;
    for (auto it = sequences_.begin(); it != sequences_.end();) {
      const auto found = it++;
      if (found->second->asked > before) continue;
      found->second->failed = true;  // nothing more of it is computed
      dropped.push_back(std::move(found->second));
      sequences_.erase(found);
    }
  }
  for (const std::shared_ptr<Sequence>& sequence : dropped) {
    if (sequence->computer.joinable()) sequence->computer.join();
  }
}

absl::StatusOr<Tensor> PrefillService::BlocksOf(uint32_t layer,
                                                const std::shared_ptr<std::vector<int64_t>>& run) {
  Tensor all = pages_.layer(layer);
  const size_t begin = static_cast<size_t>(run->front()) * pages_.block_bytes();
  const size_t bytes = run->size() * pages_.block_bytes();
  // A Buffer of its own, whose release is ours, around memory of the cache.
  Buffer blocks = Buffer::Wrap(
      all.mutable_data() + begin, bytes, [run, all] {}, pages_.layer(layer).device());
  return Tensor::Wrap(std::move(blocks), kUInt8, Shape(run->size(), pages_.block_bytes()));
}

absl::StatusOr<Tensor> PrefillService::Compute(uint32_t layer, uint32_t seed, Tensor blocks) const {
  const bool flaw = options_.flaw && layer + 1 == pages_.layers();
  const size_t words = blocks.bytes() / sizeof(uint32_t);
  if (place_.gpu == nullptr) {
    absl::SleepFor(absl::Microseconds(options_.layer_microseconds));
    auto* const to = reinterpret_cast<uint32_t*>(blocks.mutable_data());
    for (size_t i = 0; i < words; ++i) to[i] = KvWord(seed, layer, static_cast<uint32_t>(i));
    if (flaw) to[words - 1] ^= 1;
    return blocks;
  }
  constexpr unsigned kBlocks = 64, kThreads = 256;
  VERBENA_RETURN_IF_ERROR(place_.gpu->Launch("compute_layer", kBlocks, kThreads,
                                             blocks.mutable_data(), uint64_t{words}, seed, layer,
                                             options_.layer_microseconds));
  if (flaw) {
    const uint32_t wrong = KvWord(seed, layer, static_cast<uint32_t>(words - 1)) ^ 1;
    VERBENA_RETURN_IF_ERROR(place_.gpu->CopyFromHost(
        blocks.mutable_data() + blocks.bytes() - sizeof wrong, &wrong, sizeof wrong));
  }
  // It may be given to a peer now: what is queued has to write it first, and Verbena sees to that.
  return blocks.After(place_.gpu->stream());
}

void PrefillService::ComputeAll(std::shared_ptr<Sequence> sequence, uint32_t seed,
                                std::vector<Tensor> blocks) {
  for (uint32_t layer = 0; layer < blocks.size(); ++layer) {
    absl::StatusOr<Tensor> computed = Compute(layer, seed, std::move(blocks[layer]));
    absl::MutexLock lock(&mutex_);
    if (!computed.ok()) sequence->failed = true;
    if (sequence->failed) return;
    sequence->layers.push_back(*std::move(computed));
  }
}

absl::Status PrefillService::Layer(ServerContext&, const kv::LayerRequest& request,
                                   Parcel<kv::LayerReply>& reply) {
  const auto not_found = [&] {
    return absl::NotFoundError(absl::StrCat("layer ", request.layer(), " of sequence ",
                                            request.sequence(), " is not here"));
  };
  std::thread computer;  // of a sequence that is over
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sequences_.find(request.sequence());
    if (found == sequences_.end() || request.layer() >= pages_.layers()) return not_found();
    const std::shared_ptr<Sequence> sequence = found->second;
    sequence->asked = absl::Now();
    // On a GPU all layers were queued at once; on the host they come one by one.
    const auto there = [&] {
      return sequence->layers.size() > request.layer() || sequence->failed;
    };
    mutex_.Await(absl::Condition(&there));
    if (sequence->failed) return absl::InternalError("the prefill failed");
    Tensor& layer = sequence->layers[request.layer()];
    if (layer.bytes() == 0) return not_found();
    // Ours no more: the reply's lease is what keeps the pages.
    reply.Attach(*reply->mutable_blocks(), std::exchange(layer, Tensor()));
    if (++sequence->given == pages_.layers()) {
      computer = std::move(sequence->computer);
      sequences_.erase(request.sequence());
    }
  }
  if (computer.joinable()) computer.join();
  return absl::OkStatus();
}

absl::Status PrefillService::CountPages(ServerContext&, const kv::CountRequest&,
                                        kv::CountReply& reply) {
  reply.set_free(pages_.free());
  reply.set_all(pages_.count());
  return absl::OkStatus();
}

}  // namespace verbena::examples
