#include "codegen/model.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "codegen/carriers.h"
#include "codegen/names.h"
#include "verbena/v1/options.pb.h"

namespace verbena::codegen {
namespace {
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::MethodOptions;
using google::protobuf::ServiceDescriptor;

class Builder {
 public:
  explicit Builder(const FileDescriptor& file) : file_(file), carriers_(file) {}

  File Build() {
    File out;
    out.proto = std::string(file_.name());
    out.base = BaseName(file_.name());
    out.name_space = NamespaceOf(file_);
    for (const Descriptor* message : MessagesOf(file_)) {
      if (carriers_.Carries(*message)) out.carrying.push_back(BuildMessage(*message));
    }
    for (int i = 0; i < file_.service_count(); ++i) {
      out.services.push_back(BuildService(*file_.service(i)));
    }
    out.includes.assign(includes_.begin(), includes_.end());
    return out;
  }

 private:
  // A use of `type`: its file's generated header is needed if it carries.
  void Use(const Descriptor& type) {
    if (type.file() != &file_ && carriers_.Carries(type)) {
      includes_.insert(BaseName(type.file()->name()));
    }
  }

  CarryingMessage BuildMessage(const Descriptor& message) {
    CarryingMessage out;
    out.type = QualifiedName(message);
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      const FieldDescriptor& value = field.is_map() ? *field.message_type()->map_value() : field;
      const Descriptor* type = value.message_type();
      if (type == nullptr) continue;
      if (!IsTensorDescriptor(*type) && !carriers_.Carries(*type)) continue;
      Use(*type);
      TensorField reached;
      reached.shape = field.is_map()        ? TensorField::Shape::kMap
                      : field.is_repeated() ? TensorField::Shape::kRepeated
                                            : TensorField::Shape::kSingular;
      reached.is_descriptor = IsTensorDescriptor(*type);
      reached.accessor = AccessorName(field);
      reached.full_name = std::string(field.full_name());
      reached.type = QualifiedName(*type);
      out.fields.push_back(std::move(reached));
    }
    return out;
  }

  std::string Parameter(const Descriptor& type) {
    Use(type);
    if (!carriers_.Carries(type)) return QualifiedName(type);
    return absl::StrCat("::verbena::Parcel<", QualifiedName(type), ">");
  }

  Service BuildService(const ServiceDescriptor& service) {
    Service out;
    google::protobuf::SourceLocation location;
    if (service.GetSourceLocation(&location)) {
      out.comment = CommentLines(location.leading_comments, "");
    }
    out.name = ServiceName(service);
    out.full_name = std::string(service.full_name());
    const std::vector<MethodNames> names = MethodNamesOf(service);
    for (int i = 0; i < service.method_count(); ++i) {
      Method method = BuildMethod(*service.method(i));
      method.name = names[static_cast<size_t>(i)].method;
      method.mock = names[static_cast<size_t>(i)].mock;
      out.methods.push_back(std::move(method));
    }
    return out;
  }

  Method BuildMethod(const MethodDescriptor& method) {
    Method out;
    google::protobuf::SourceLocation location;
    if (method.GetSourceLocation(&location)) {
      out.comment = CommentLines(location.leading_comments, "  ");
    }
    out.path = absl::StrCat("/", method.service()->full_name(), "/", method.name());
    out.kind = KindOf(method);
    const MethodOptions& options = method.options();
    out.blocking = options.GetExtension(v1::blocking);
    out.idempotent = options.idempotency_level() != MethodOptions::IDEMPOTENCY_UNKNOWN;
    out.request_bytes_max = options.GetExtension(v1::request_bytes_max);
    out.reply_bytes_max = options.GetExtension(v1::reply_bytes_max);
    out.request = Parameter(*method.input_type());
    out.reply = Parameter(*method.output_type());
    return out;
  }

  static Kind KindOf(const MethodDescriptor& method) {
    if (method.client_streaming()) {
      return method.server_streaming() ? Kind::kBidi : Kind::kClientStreaming;
    }
    return method.server_streaming() ? Kind::kServerStreaming : Kind::kUnary;
  }

  const FileDescriptor& file_;
  const Carriers carriers_;
  std::set<std::string> includes_;
};
}  // namespace

File BuildFileModel(const FileDescriptor& file) { return Builder(file).Build(); }

}  // namespace verbena::codegen
