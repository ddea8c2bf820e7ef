// Compiled once for all cases, as a main file: hence no pragma.
#ifndef VERBENA_TESTS_CODEGEN_MUST_NOT_COMPILE_PRELUDE_H_
#define VERBENA_TESTS_CODEGEN_MUST_NOT_COMPILE_PRELUDE_H_
#include <memory>
#include <utility>

#include "golden/greeter.verbena.h"
#include "golden/inference.verbena.h"
#include "verbena/generated.h"
#include "verbena/v1/tensor.pb.h"

#endif
