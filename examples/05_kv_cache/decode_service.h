#pragma once
// Pulls a prompt's keys and values from a prefill server into pages of its own.
#include <memory>

#include "examples/05_kv_cache/pages.h"
#include "examples/05_kv_cache/place.h"
#include "kv.verbena.h"

namespace verbena::examples {

class DecodeService final : public kv::Decode::Service {
 public:
  // `place` and `pages` outlive it. `pages` has the prefill server's layers and blocks' size.
  DecodeService(const Place& place, Pages& pages, std::shared_ptr<Channel> prefill)
      : place_(place), pages_(pages), prefill_(std::move(prefill)) {}

  // Errors: DATA_LOSS when a byte is not what the prompt makes it, or the prefill server's pages do
  // not become free; FAILED_PRECONDITION when they are free before they were read;
  // RESOURCE_EXHAUSTED; what the prefill server says.
  absl::Status Generate(ServerContext& context, const kv::Prompt& prompt,
                        kv::Generated& reply) override;

 private:
  // Into the pages that `table` names, all layers.
  absl::Status PullAll(const kv::Begun& begun, const std::vector<int64_t>& table,
                       kv::Generated& reply) const;
  absl::Status CheckAll(const kv::Prompt& prompt, const std::vector<int64_t>& table) const;
  // Waits for the prefill server to have `free` free pages.
  absl::Status WaitForFree(uint32_t free) const;

  const Place& place_;
  Pages& pages_;
  const kv::Prefill::Stub prefill_;
};

}  // namespace verbena::examples
