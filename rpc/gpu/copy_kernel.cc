#include "rpc/gpu/copy_kernel.h"

#include <algorithm>
#include <utility>

#include "rpc/base/check.h"

namespace verbena::gpu {
namespace {

constexpr unsigned kThreads = 512;
// Blocks of threads that run at once. On an H200, 64 move as much over NVLink as more do; within
// its own memory it takes one for each of its 132 processors. Each holds up other kernels' work.
constexpr uint32_t kBlocks = 128;
// What a block moves in two rounds of its loop; less would not be worth starting it.
constexpr uint64_t kPartBytes = 64 << 10;

// Blocks of threads: x goes over the pieces, y over parts of each. A thread has four loads of 16
// bytes under way before it stores the first: what is far away, behind NVLink, takes a microsecond.
// Parameters above 4 KiB need this version of PTX; nothing else does.
constexpr char kPtx[] = R"(
.version 8.1
.target sm_75
.address_size 64

.visible .entry verbena_copy(.param .align 8 .b8 pieces[6144], .param .u32 count)
.maxntid 512, 1, 1
{
  .reg .pred %p<5>;
  .reg .b16 %byte;
  .reg .b32 %count, %x, %xs, %y, %ys, %thread, %tail;
  .reg .b32 %a<4>, %b<4>, %c<4>, %d<4>;
  .reg .b64 %list, %piece, %skip, %to, %from, %bytes, %units, %parts, %part, %i, %end, %next, %lane;
  .reg .b64 %src, %dst, %at;

  ld.param.u32 %count, [count];
  mov.b64 %list, pieces;
  mov.u32 %x, %ctaid.x;
  mov.u32 %xs, %nctaid.x;
  mov.u32 %y, %ctaid.y;
  mov.u32 %ys, %nctaid.y;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %lane, %thread;
  cvt.u64.u32 %parts, %ys;

next_piece:
  setp.ge.u32 %p0, %x, %count;
  @%p0 bra done;
  mul.wide.u32 %skip, %x, 24;
  add.u64 %piece, %list, %skip;
  ld.param.u64 %to, [%piece];
  ld.param.u64 %from, [%piece+8];
  ld.param.u64 %bytes, [%piece+16];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;

  // This block's part, in units of 16 bytes: [i, end).
  shr.u64 %units, %bytes, 4;
  add.u64 %part, %units, %parts;
  sub.u64 %part, %part, 1;
  div.u64 %part, %part, %parts;
  cvt.u64.u32 %i, %y;
  mul.lo.u64 %i, %i, %part;
  add.u64 %end, %i, %part;
  min.u64 %end, %end, %units;
  add.u64 %i, %i, %lane;

next_units:
  setp.ge.u64 %p0, %i, %end;
  @%p0 bra tail;
  add.u64 %next, %i, 512;
  setp.lt.u64 %p1, %next, %end;
  add.u64 %next, %i, 1024;
  setp.lt.u64 %p2, %next, %end;
  add.u64 %next, %i, 1536;
  setp.lt.u64 %p3, %next, %end;
  shl.b64 %at, %i, 4;
  add.u64 %src, %from, %at;
  add.u64 %dst, %to, %at;
  ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%src];
  @%p1 ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%src+8192];
  @%p2 ld.global.v4.u32 {%c0, %c1, %c2, %c3}, [%src+16384];
  @%p3 ld.global.v4.u32 {%d0, %d1, %d2, %d3}, [%src+24576];
  st.global.v4.u32 [%dst], {%a0, %a1, %a2, %a3};
  @%p1 st.global.v4.u32 [%dst+8192], {%b0, %b1, %b2, %b3};
  @%p2 st.global.v4.u32 [%dst+16384], {%c0, %c1, %c2, %c3};
  @%p3 st.global.v4.u32 [%dst+24576], {%d0, %d1, %d2, %d3};
  add.u64 %i, %i, 2048;
  bra next_units;

  // The last bytes, less than a unit, one for each thread of the first part's block.
tail:
  setp.ne.u32 %p0, %y, 0;
  @%p0 bra piece_done;
  cvt.u32.u64 %tail, %bytes;
  and.b32 %tail, %tail, 15;
  setp.ge.u32 %p0, %thread, %tail;
  @%p0 bra piece_done;
  shl.b64 %at, %units, 4;
  add.u64 %at, %at, %lane;
  add.u64 %src, %from, %at;
  add.u64 %dst, %to, %at;
  ld.global.u8 %byte, [%src];
  st.global.u8 [%dst], %byte;

piece_done:
  add.u32 %x, %x, %xs;
  bra next_piece;

done:
  ret;
}
)";
static_assert(sizeof(CopyKernel::Batch::pieces) == 6144 && sizeof(CopyKernel::Piece) == 24);

}  // namespace

const char* CopyKernel::ptx() { return kPtx; }

absl::Status CopyKernel::Load(const Driver& driver) {
  if (std::exchange(tried_, true)) return absl::OkStatus();
  abi::Module module = nullptr;
  abi::Result r = driver.cuModuleLoadData(&module, kPtx);
  if (r != abi::kSuccess) return StatusOf(driver, r, "loading the copy kernel");
  abi::Function function = nullptr;
  r = driver.cuModuleGetFunction(&function, module, "verbena_copy");
  if (r != abi::kSuccess) return StatusOf(driver, r, "finding the copy kernel");
  function_.store(function, std::memory_order_release);
  return absl::OkStatus();
}

abi::Result CopyKernel::Launch(const Driver& driver, const Batch& batch, abi::Stream stream) const {
  VERBENA_DCHECK(loaded() && batch.count > 0 && batch.count <= kPiecesMax);
  uint64_t largest = 0;
  for (uint32_t i = 0; i < batch.count; ++i) largest = std::max(largest, batch.pieces[i].bytes);
  const uint64_t worth = std::max<uint64_t>(largest / kPartBytes, 1);
  const uint32_t blocks = std::min(batch.count, kBlocks);
  const auto parts = static_cast<uint32_t>(std::min<uint64_t>(kBlocks / blocks, worth));
  // The driver takes both when it is called; its parameters are not const.
  auto& pieces = const_cast<std::array<Piece, kPiecesMax>&>(batch.pieces);
  uint32_t count = batch.count;
  void* parameters[] = {pieces.data(), &count};
  return driver.cuLaunchKernel(function_.load(std::memory_order_acquire), blocks, parts, 1,
                               kThreads, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace verbena::gpu
