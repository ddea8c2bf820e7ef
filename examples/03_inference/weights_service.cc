#include "examples/03_inference/weights_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "examples/03_inference/digest.h"

namespace verbena::examples {

WeightsService::WeightsService(safetensors::File file)
    : file_(std::make_shared<const safetensors::File>(std::move(file))) {
  data_ = Buffer::WrapReadOnly(file_->data().data(), file_->data().size(), [file = file_] {});
  list_.set_file(file_->path());
  for (const auto& [key, value] : file_->metadata()) (*list_.mutable_metadata())[key] = value;
  for (const safetensors::TensorInfo& info : file_->tensors()) {
    inference::TensorEntry& entry = *list_.add_tensors();
    entry.set_name(info.name);
    entry.mutable_spec()->set_dtype(info.dtype);
    for (int64_t dimension : info.shape) entry.mutable_spec()->add_shape(dimension);
    entry.set_bytes(info.bytes);
    entry.set_sha256(Sha256Hex(file_->data(info)));
    tensors_.emplace(info.name, &info);
  }
}

Task<absl::Status> WeightsService::List(ServerContext&, const inference::ListRequest&,
                                        inference::ListReply& reply) {
  reply = list_;
  return absl::OkStatus();
}

Task<absl::Status> WeightsService::Pull(ServerContext&, const inference::PullRequest& request,
                                        Parcel<inference::PullReply>& reply) {
  const auto found = tensors_.find(request.name());
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(file_->path(), " has no tensor of this name"));
  }
  VERBENA_RETURN_IF_ERROR(file_->CheckUnchanged());
  const safetensors::TensorInfo& info = *found->second;
  VERBENA_ASSIGN_OR_RETURN(Buffer data, data_.Slice(info.offset, info.bytes));
  VERBENA_ASSIGN_OR_RETURN(Shape shape, Shape::From(info.shape));
  VERBENA_ASSIGN_OR_RETURN(Tensor tensor,
                           Tensor::Wrap(std::move(data), DType::FromWord(info.dtype), shape));
  reply.Attach(*reply->mutable_tensor(), std::move(tensor));
  return absl::OkStatus();
}

}  // namespace verbena::examples
