#pragma once
// Parcel<T>: a message of a type that can carry tensors, together with its tensors.
//   verbena::Parcel<demo::InferRequest> request;
//   request->set_model("m");                                    // the message
//   request.Attach(*request->mutable_input(), tensor);          // put a tensor in
//   VERBENA_CO_ASSIGN_OR_RETURN(Tensor t, co_await reply.Fetch(reply->output()));  // get one out
//
// Invariant: a descriptor (verbena.v1.Tensor, verbena.v1.Buffer) means something only together with
// the parcel it belongs to. One that was copied elsewhere is an error that names the field, never
// another tensor.
//
// A request's tensors can be fetched until its handler ends, a reply's until the client's Parcel
// dies, Release() or FetchAll(). A fetched tensor owns its memory and outlives everything.
#include <concepts>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "verbena/call.h"
#include "verbena/placement.h"
#include "verbena/tensor.h"
#include "verbena/v1/tensor.pb.h"

namespace verbena {

// Sees every descriptor of a message; `field` is the field's full name.
class DescriptorVisitor {
 public:
  virtual void Visit(const v1::Tensor& tensor, const char* field) = 0;
  virtual void Visit(const v1::Buffer& buffer, const char* field) = 0;

 protected:
  ~DescriptorVisitor() = default;
};

// Specialised in x.verbena.h for each message that can carry tensors.
template <class T>
struct TensorFields;
template <class T>
concept CarriesTensors = requires(const T& message, DescriptorVisitor& visitor) {
  TensorFields<T>::Visit(message, visitor);
};

template <class T>
class Parcel;

namespace internal {

class ParcelTable;    // rpc/tensor/parcel_table.h
class MessageWriter;  // rpc/tensor/message_writer.h
class MessageReader;  // rpc/tensor/message_reader.h
struct ParcelAccess;

// A message without its type: how to find its descriptors.
struct TypedMessage {
  const google::protobuf::MessageLite* message;
  const void* typed;
  void (*visit)(const void* typed, DescriptorVisitor& visitor);
};

// Everything of a parcel that does not depend on T.
class ParcelBase {
 public:
  ParcelBase(ParcelBase&& other) noexcept
      : stamp_(std::exchange(other.stamp_, 0)), table_(std::exchange(other.table_, nullptr)) {}
  ParcelBase& operator=(ParcelBase&& other) noexcept;
  ~ParcelBase() {
    if (table_ != nullptr) Release();
  }

  // Fills `descriptor`, a field of this parcel's message at any depth, and shares the tensor's
  // memory until the call that the parcel is given to has ended. Attaching to the same descriptor
  // again replaces the tensor. No copy is made, except that small memory which the library did not
  // allocate may be staged when the parcel is sent. Any thread; not concurrently on one object.
  void Attach(v1::Tensor& descriptor, Tensor tensor);
  void Attach(v1::Buffer& descriptor, Buffer buffer);

  // Pulls a tensor from its owner to where `placement` says; the CPU of the owner is not involved
  // on RDMA and shared memory. On a parcel that it was attached to, or after FetchAll: the same
  // memory where that is what `placement` says, else a copy within this process, which comes after
  // the tensor's producer (Tensor::After) and after what is queued on the placement's stream.
  // Errors: INVALID_ARGUMENT (a foreign descriptor, a destination of another type or shape, or
  // cudaStreamPerThread), OUT_OF_RANGE (slice), FAILED_PRECONDITION (released, or the call is over;
  // the destination was freed; the path is not the one that Placement::RequirePath names: the
  // message says which it is, report().path need not; the stream of Placement::InStream is being
  // captured into a graph), NOT_FOUND (no such device here: UseGpus), CANCELLED (released
  // meanwhile), UNAVAILABLE (the owner is gone), DATA_LOSS (the owner revoked it: a reply's tensors
  // stay its server's, which takes them back when they were not fetched for
  // ServerOptions::set_reply_lease_age_max, 30 s unless it says otherwise; its memory is gone, or
  // its device has failed), RESOURCE_EXHAUSTED (pool, device or budget, named), and what a device
  // of the destination's says that has failed. Dropping the Call leaves the destination owned until
  // no byte can arrive any more. Any thread; several at the same time are fine.
  Call<Tensor> Fetch(const v1::Tensor& descriptor, const Placement& placement = {}) const;
  // Only a part.
  Call<Tensor> Fetch(const v1::Tensor& descriptor, const TensorSlice& slice,
                     const Placement& placement = {}) const;
  Call<Buffer> Fetch(const v1::Buffer& descriptor, const Placement& placement = {}) const;
  // Pulls everything that is not here yet and gives the leases back; later Fetches of whole tensors
  // are free.
  Call<void> FetchAll(const Placement& placement = {}) const;
  // Gives received memory back to its owner now. The destructor does it too.
  void Release();

 protected:
  ParcelBase() = default;

 private:
  friend struct ParcelAccess;
  uint64_t stamp_ = 0;
  ParcelTable* table_ = nullptr;  // one reference; fetches in flight hold others
};

}  // namespace internal

template <class T>
class Parcel : public internal::ParcelBase {
  static_assert(CarriesTensors<T>,
                "Parcel<T>: T carries no tensors (use T itself), or its generated x.verbena.h is "
                "not included");

 public:
  Parcel() = default;
  explicit Parcel(T message) : message_(std::move(message)) {}
  Parcel(Parcel&&) noexcept = default;
  Parcel& operator=(Parcel&&) noexcept = default;

  const T& message() const { return message_; }
  const T& operator*() const { return message_; }
  const T* operator->() const { return &message_; }
  T& operator*() { return message_; }
  T* operator->() { return &message_; }

 private:
  friend struct internal::ParcelAccess;
  T message_;
};

namespace internal {

absl::Status WriteParcel(const ParcelBase& parcel, const TypedMessage& message, MessageWriter& out);
absl::Status ReadParcel(MessageReader& in, ParcelBase& parcel,
                        google::protobuf::MessageLite& message, const TypedMessage& typed);
absl::Status TakeParcel(Operation& operation, ParcelBase& parcel,
                        google::protobuf::MessageLite& message, const TypedMessage& typed);

struct ParcelAccess {
  template <class T>
  static TypedMessage Typed(const Parcel<T>& parcel) {
    return {&parcel.message_, &parcel.message_, [](const void* typed, DescriptorVisitor& visitor) {
              TensorFields<T>::Visit(*static_cast<const T*>(typed), visitor);
            }};
  }
  template <class T>
  static T& Message(Parcel<T>& parcel) {
    return parcel.message_;
  }
  static uint64_t& Stamp(ParcelBase& parcel) { return parcel.stamp_; }
  static uint64_t Stamp(const ParcelBase& parcel) { return parcel.stamp_; }
  static ParcelTable*& Table(ParcelBase& parcel) { return parcel.table_; }
  static ParcelTable* Table(const ParcelBase& parcel) { return parcel.table_; }
};

template <class T>
struct Taker<Parcel<T>> {
  static absl::Status Take(Operation& operation, Parcel<T>& out) {
    return TakeParcel(operation, out, ParcelAccess::Message(out), ParcelAccess::Typed(out));
  }
};

}  // namespace internal
}  // namespace verbena
