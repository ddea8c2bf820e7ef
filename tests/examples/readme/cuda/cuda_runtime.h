#pragma once
// What the README's programs take of the CUDA runtime, declared as it is there: they are compiled,
// and not linked.
#include <cstddef>

enum cudaError_t { cudaSuccess = 0 };
using cudaStream_t = struct CUstream_st*;
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
