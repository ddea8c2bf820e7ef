// CudaCopyEngine: many small pieces at once.
#include "rpc/gpu/copy_engine.h"
#include "rpc/gpu/cuda_device.h"

namespace verbena::gpu {
namespace {

// Fewer are sooner asked for one by one than a kernel starts.
constexpr size_t kBatchPiecesMin = 4;
// From here on the GPU's copy engines are faster, and take no multiprocessor from others' kernels.
constexpr size_t kBatchedBytesMax = 1 << 20;

// Whether a kernel may use [address, address + bytes). `known` is what was found for another piece:
// the pieces of a copy mostly lie in few allocations.
bool Covers(const CudaDevice& device, const std::byte* pointer, size_t bytes, bool write,
            CudaDevice::Range& known) {
  const auto address = reinterpret_cast<abi::Address>(pointer);
  if (address % CopyKernel::kAlignment != 0) return false;
  if (address < known.begin || address >= known.end) known = device.KernelRange(address, write);
  return address >= known.begin && address < known.end && bytes <= known.end - address;
}

}  // namespace

bool CudaCopyEngine::IssueBatch(Queued& entry) {
  const CopyKernel& kernel = device_.copy_kernel();
  if (piece_offset_ != 0 || piece_ < unbatched_ || entry.pieces.size() - piece_ < kBatchPiecesMin ||
      !kernel.loaded()) {
    return false;
  }
  CopyKernel::Batch batch;
  CudaDevice::Range to, from;
  size_t i = piece_;
  for (; i < entry.pieces.size() && batch.count < CopyKernel::kPiecesMax; ++i) {
    const memory::CopyPiece& piece = entry.pieces[i];
    if (piece.bytes == 0 || piece.bytes > kBatchedBytesMax ||
        !Covers(device_, piece.to, piece.bytes, true, to) ||
        !Covers(device_, piece.from, piece.bytes, false, from)) {
      break;
    }
    batch.pieces[batch.count++] = {reinterpret_cast<abi::Address>(piece.to),
                                   reinterpret_cast<abi::Address>(piece.from), piece.bytes};
  }
  if (batch.count < kBatchPiecesMin) {
    unbatched_ = i + 1;  // not asked again for each
    return false;
  }
  Check(entry, kernel.Launch(device_.driver(), batch, stream_), "a batch of copies");
  piece_ += batch.count;
  return true;
}

}  // namespace verbena::gpu
