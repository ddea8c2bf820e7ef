#pragma once
// Placement: where fetched bytes go. Small, because every call's options hold one.
//
//   co_await request.Fetch(request->input(), verbena::Device::Cuda(0));
//   co_await request.Fetch(request->input(), verbena::Placement::Into(mine));
//   co_await reply.Fetch(reply->keys(), verbena::Placement::IntoRows(pages, block_table));
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "verbena/device.h"
#include "verbena/path.h"
#include "verbena/tensor.h"

namespace verbena {

// A class with constructors, so that a temporary is safe inside co_await on g++ 12.
class Placement {
 public:
  // Memory of the library's, on the host.
  Placement() noexcept {}
  // Memory of the library's, on `device`.
  Placement(Device device) noexcept : device_(device) {}  // NOLINT(google-explicit-constructor)
  static Placement On(Device device) { return Placement(device); }
  // Memory of the caller: one destination, or one for each tensor in the order of their fields.
  // Each must be contiguous, writable, and of the tensor's size.
  template <class... Rest>
  static Placement Into(Tensor first, Rest... rest) {
    std::vector<Tensor> tensors;
    tensors.reserve(1 + sizeof...(rest));
    tensors.push_back(std::move(first));
    (tensors.push_back(std::move(rest)), ...);
    return Into(std::move(tensors));
  }
  static Placement Into(std::vector<Tensor> tensors) {
    Placement p;
    if (!tensors.empty()) p.device_ = tensors.front().device();
    p.into_ = std::make_shared<const Destinations>(std::move(tensors), std::vector<int64_t>());
    return p;
  }
  // Memory of the caller, scattered: what is fetched has one row (of the first dimension) for each
  // of `rows`, and row i of it becomes row rows[i] of `table`, which is contiguous, writable and of
  // the same type, and whose rows are of the same shape and whole bytes. A row that is named twice
  // holds either. All rows travel together, and on a GPU are copied together: it costs little more
  // than one copy of as many bytes. The result of the fetch is `table`. For Fetch of a tensor only.
  // INVALID_ARGUMENT: another number of rows, another type or shape, a table that is not
  // contiguous and writable. OUT_OF_RANGE: a row that `table` does not have. UNIMPLEMENTED: what is
  // fetched is strided. RESOURCE_EXHAUSTED: more than kFetchPiecesMax (4,096) runs of rows that do
  // not lie side by side.
  static Placement IntoRows(Tensor table, std::vector<int64_t> rows) {
    Placement p;
    p.device_ = table.device();
    std::vector<Tensor> tables;
    tables.push_back(std::move(table));
    auto destinations = std::make_shared<Destinations>(std::move(tables), std::move(rows));
    destinations->scattered = true;
    p.into_ = std::move(destinations);
    return p;
  }

  // Into memory of a GPU that the work queued on `stream` uses: bytes arrive after what is queued
  // there when they come, and what is queued there once the fetch has ended sees them. Between GPUs
  // of one host it ends when the copy stands in the stream, whatever it has to wait for there;
  // until it is over its owner's memory and its destination are held. One that is cancelled, or out
  // of time, when its copies stand there ends at once, and what they bring still arrives. Into
  // memory of the host: the stream is ignored; the fetch ends when the bytes are there. A fetch
  // from a peer ends with INVALID_ARGUMENT, and moves nothing, where it is cudaStreamPerThread.
  Placement& InStream(DeviceStream stream) & {
    stream_ = stream.handle();
    return *this;
  }
  Placement InStream(DeviceStream stream) && { return std::move(InStream(stream)); }

  // The fetch ends with FAILED_PRECONDITION, which names both, when its bytes would come by another
  // path; none has moved then.
  Placement& RequirePath(Path path) & {
    path_ = path;
    return *this;
  }
  Placement RequirePath(Path path) && { return std::move(RequirePath(path)); }

  Device device() const { return device_; }
  Path required_path() const { return path_; }
  // Null: none.
  void* stream() const { return stream_; }
  // Null: no destination was given for it.
  const Tensor* destination(size_t ordinal = 0) const {
    return into_ != nullptr && ordinal < into_->tensors.size() ? &into_->tensors[ordinal] : nullptr;
  }
  size_t destinations() const { return into_ == nullptr ? 0 : into_->tensors.size(); }
  // Of destination(), which row each fetched row becomes; null: it is one tensor.
  const std::vector<int64_t>* rows() const {
    return into_ != nullptr && into_->scattered ? &into_->rows : nullptr;
  }

 private:
  struct Destinations {
    Destinations(std::vector<Tensor> t, std::vector<int64_t> r)
        : tensors(std::move(t)), rows(std::move(r)) {}
    std::vector<Tensor> tensors;
    std::vector<int64_t> rows;
    bool scattered = false;
  };
  Device device_;
  Path path_ = Path::kNone;
  void* stream_ = nullptr;
  std::shared_ptr<const Destinations> into_;
};

}  // namespace verbena
