#pragma once
// Pulls a prompt's keys and values from a prefill server into pages of its own.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "examples/05_kv_cache/pages.h"
#include "examples/05_kv_cache/place.h"
#include "kv.verbena.h"

namespace verbena::examples {

class DecodeService final : public kv::Decode::Service {
 public:
  // `place` and `pages` outlive it. `pages` has the prefill server's layers and blocks' size.
  DecodeService(const Place& place, Pages& pages, std::shared_ptr<Channel> prefill)
      : place_(place), pages_(pages), prefill_(std::move(prefill)) {}

  // A coroutine, since it waits for many things at once and computes nothing: each layer's bytes
  // are asked for while others come. Errors: FAILED_PRECONDITION when the prefill server's pages
  // are free before they were read; INVALID_ARGUMENT, RESOURCE_EXHAUSTED; what the prefill server
  // says.
  Task<absl::Status> Generate(ServerContext& context, const kv::Prompt& prompt,
                              kv::Generated& reply) override;
  // Errors: DATA_LOSS when a byte is not what the prompt makes it, or the prefill server's pages do
  // not become free; NOT_FOUND.
  absl::Status Check(ServerContext& context, const kv::CheckRequest& request,
                     kv::CheckReply& reply) override;

 private:
  struct Sequence {
    kv::Prompt prompt;
    std::vector<int64_t> table;
    uint32_t prefill_free = 0;  // pages that the prefill server had free before
  };
  // One layer on its way: the parcel holds the lease until the bytes are in place.
  struct LayerPull {
    Parcel<kv::LayerReply> reply;
    Call<Tensor> fetch;
  };

  Task<absl::Status> Pull(const kv::Prompt& prompt, const std::vector<int64_t>& table,
                          kv::Generated& reply) const;
  // All layers into the pages that `table` names, which nothing writes any more at the end,
  // whatever came of it.
  Task<absl::Status> PullAll(const kv::Begun& begun, const std::vector<int64_t>& table,
                             kv::Generated& reply) const;
  // Those in `pulls` are on their way still, when it fails.
  Task<absl::Status> PullLayers(const kv::Begun& begun, const std::vector<int64_t>& table,
                                std::deque<LayerPull>& pulls, kv::Generated& reply) const;
  absl::Status CheckAll(const Sequence& sequence) const;
  // Waits for the prefill server to have `free` free pages.
  absl::Status WaitForFree(uint32_t free) const;

  const Place& place_;
  Pages& pages_;
  const kv::Prefill::Stub prefill_;
  absl::Mutex mutex_;
  std::map<uint64_t, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace verbena::examples
