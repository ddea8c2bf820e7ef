// Stands for a layer of a model: takes its time, then writes keys and values. examples/common/ptx makes kernels.ptx of it.

// What each 32-bit word of a layer holds; content.h has the same for the host.
__device__ unsigned Word(unsigned seed, unsigned layer, unsigned index) {
  return (seed * 0x9E3779B1u ^ layer * 0x85EBCA77u) + index * 0xC2B2AE3Du;
}

extern "C" __global__ void compute_layer(unsigned* to, unsigned long long words, unsigned seed, unsigned layer,
                                         unsigned microseconds) {
  unsigned long long now, begin;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < 1000ull * microseconds);
  const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += threads) {
    to[i] = Word(seed, layer, static_cast<unsigned>(i));
  }
}
