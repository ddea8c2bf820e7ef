#pragma once
// Computes prompts layer by layer and leases each layer's blocks as soon as they are there.
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "examples/05_kv_cache/pages.h"
#include "examples/05_kv_cache/place.h"
#include "kv.verbena.h"

namespace verbena::examples {

struct PrefillOptions {
  uint32_t layer_microseconds = 300;  // that a layer takes to compute
  bool flaw = false;                  // one byte of the last layer is wrong: it has to be found
  absl::Duration idle_max = absl::Seconds(60);  // of a sequence: see Begin
};

class PrefillService final : public kv::Prefill::Service {
 public:
  // `place` and `pages` outlive it, and whatever it has leased.
  PrefillService(const Place& place, Pages& pages, PrefillOptions options)
      : place_(place), pages_(pages), options_(options) {}
  // Waits for what is being computed.
  ~PrefillService() override;

  // Drops the sequences of which no layer was asked for in idle_max: their clients are gone.
  // Errors: INVALID_ARGUMENT (no blocks), RESOURCE_EXHAUSTED (more than there are free pages).
  absl::Status Begin(ServerContext& context, const kv::Prompt& prompt, kv::Begun& reply) override;
  // Errors: NOT_FOUND when there is no such layer, it was given out before, or dropped.
  absl::Status Layer(ServerContext& context, const kv::LayerRequest& request,
                     Parcel<kv::LayerReply>& reply) override;
  absl::Status CountPages(ServerContext& context, const kv::CountRequest& request,
                          kv::CountReply& reply) override;

 private:
  struct Sequence {
    std::vector<Tensor> layers;  // those that were computed, or are queued to be; then given out
    size_t given = 0;
    std::thread computer;  // on the host
    bool failed = false;   // or dropped
    absl::Time asked;      // when a layer was asked for last
  };

  // Those whose clients are gone; their pages are free when it returns.
  void DropIdle();

  // The layer's blocks as a tensor that gives them back when nobody has it any more.
  absl::StatusOr<Tensor> BlocksOf(uint32_t layer, const std::shared_ptr<std::vector<int64_t>>& run);
  // Queues it on the GPU, whose stream it is said to come after; on the host it is done.
  absl::StatusOr<Tensor> Compute(uint32_t layer, uint32_t seed, Tensor blocks) const;
  void ComputeAll(std::shared_ptr<Sequence> sequence, uint32_t seed, std::vector<Tensor> blocks);

  const Place& place_;
  Pages& pages_;
  const PrefillOptions options_;
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Sequence>> sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace verbena::examples
