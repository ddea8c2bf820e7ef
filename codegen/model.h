#pragma once
// What the printers need to know about one .proto file, as plain values: every C++ name is final
// and `::`-qualified, every choice is made. BuildFileModel() is the only place that turns
// descriptors into names; the printers only print.
#include <cstdint>
#include <string>
#include <vector>

namespace google::protobuf {
class FileDescriptor;
}

namespace verbena::codegen {

// A field through which a tensor can be reached.
struct TensorField {
  enum class Shape { kSingular, kRepeated, kMap };
  Shape shape = Shape::kSingular;
  bool is_descriptor =
      false;              // verbena.v1.Tensor or Buffer itself, else a message that carries some
  std::string accessor;   // "input", "class_"
  std::string full_name;  // "demo.InferRequest.input"
  std::string type;       // of the field, or of the map's values
};

struct CarryingMessage {
  std::string type;  // "::demo::InferRequest"
  std::vector<TensorField> fields;
};

enum class Kind { kUnary, kServerStreaming, kClientStreaming, kBidi };

struct Method {
  std::string comment;  // the .proto's, lines "// ..."
  std::string name;     // in C++
  std::string mock;     // the mock's member: "on_Infer"
  std::string path;     // "/demo.Inference/Infer"
  Kind kind = Kind::kUnary;
  bool blocking = false;
  bool idempotent = false;
  uint64_t request_bytes_max = 0;  // 0: the server's limit
  uint64_t reply_bytes_max = 0;
  std::string request;  // "::demo::Prompt" or "::verbena::Parcel<::demo::InferRequest>"
  std::string reply;
};

struct Service {
  std::string comment;
  std::string name;  // in C++
  std::string full_name;
  std::vector<Method> methods;
};

struct File {
  std::string proto;                  // "demo/inference.proto"
  std::string base;                   // "demo/inference"
  std::string name_space;             // "demo::v1"; empty without a package
  std::vector<std::string> includes;  // bases of the files whose carrying messages this one uses
  std::vector<CarryingMessage> carrying;
  std::vector<Service> services;
};

// `file` has passed CheckFile().
File BuildFileModel(const google::protobuf::FileDescriptor& file);

}  // namespace verbena::codegen
