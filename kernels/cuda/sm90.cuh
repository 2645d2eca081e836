#pragma once

// Hopper's instructions (sm_90a) that CUDA C++ has no name for: mbarriers, the bulk copy engine
// (TMA), warpgroup matrix products' fences and descriptors, register reallocation. One function per
// instruction, named after it. The products themselves are in wgmma.cuh. PTX ISA 9.0, chapter 9.7.

#include <cuda.h>

#include <cstdint>

namespace orrery::sm90 {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarrier: a phase ends when all arrivals and all expected bytes have come -----------------

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives at the barrier at the same offset in block `block` of the cluster. Orders nothing before
// it but what is complete (products waited for): a release would be a fence of the whole GPU, most
// of a microsecond.
__device__ inline void barrier_arrive_cluster(std::uint64_t* barrier, std::uint32_t block) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(barrier)), "r"(block));
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
               : "memory");
}
__device__ inline void barrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of this parity has ended.
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra done_%=;\n"
      "bra wait_%=;\n"
      "done_%=:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Whether the phase of this parity has ended.
[[nodiscard]] __device__ inline bool barrier_test(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t has_ended;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(has_ended)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return has_ended != 0;
}

// --- copies by threads ---------------------------------------------------------------------------

// 16 bytes from global to shared memory, past the L1 cache, of which the first `bytes` (0 or 16)
// are read and the others are zeros. A miss of the L2 cache fetches 256 bytes.
__device__ inline void copy_16(std::uint32_t shared, const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
// Arrives at `barrier` once all that this thread has copied so is there: one of its arrivals.
__device__ inline void barrier_arrive_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Until all of it is there.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// --- bulk copies ---------------------------------------------------------------------------------

// L2 policies of loads: `first` leaves the cache soonest (streams), `last` stays (re-read tiles).
__device__ inline std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline std::uint64_t evict_last() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// `bytes` (a multiple of 16) from global to shared memory, completing on `barrier`.
__device__ inline void copy_bulk(void* shared, const void* global, std::uint32_t bytes,
                                 std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The box of `map` at (x, y), innermost first, completing on `barrier`.
__device__ inline void load_2d(void* shared, const CUtensorMap* map, int x, int y,
                               std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void load_2d(void* shared, const CUtensorMap* map, int x, int y,
                               std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// As load_2d into every block of the cluster that `blocks` names, at the same offsets.
__device__ inline void load_2d_multicast(void* shared, const CUtensorMap* map, int x, int y,
                                         std::uint64_t* barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
__device__ inline void load_3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                               std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void load_3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                               std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ inline void load_4d(void* shared, const CUtensorMap* map, int x, int y, int z, int w,
                               std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

__device__ inline void load_5d(void* shared, const CUtensorMap* map, int x, int y, int z, int w,
                               int v, std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ inline void store_2d(const CUtensorMap* map, const void* shared, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(shared_address(shared))
      : "memory");
}
__device__ inline void store_3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          map),
      "r"(x), "r"(y), "r"(z), "r"(shared_address(shared))
      : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most kPending committed stores still read shared memory.
template <int kPending>
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until at most kPending committed stores are not yet complete.
template <int kPending>
__device__ inline void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
// `bytes` (a multiple of 16) from shared to global memory; joins the next committed group.
__device__ inline void store_bulk(void* global, const void* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// Orders this thread's ordinary accesses of shared memory before later ones of the copy engine and
// the tensor cores; a barrier among the writing threads must follow.
__device__ inline void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- warpgroup products --------------------------------------------------------------------------

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of an operand in shared memory, in tiles of 8 rows of 128 bytes with the 128-byte
// swizzle (tile 1,024-byte aligned). `stride` is the distance in bytes of one group of 8 rows to
// the next.
//   K-major (row = m or n, 64 bf16 or 128 fp8 of k): stride 1024, `leading` unused. The next 32
//   bytes
//     of k: add 32 to the address.
//   MN-major (row = k, 64 bf16 of m or n; transposed operand, bf16 only): `stride` between groups
//   of 8
//     k, `leading` between groups of 64 m or n.
__device__ inline std::uint64_t descriptor_128(const void* shared, std::uint32_t stride = 1024,
                                               std::uint32_t leading = 16) {
  constexpr std::uint64_t kSwizzle128 = 1;
  const auto field = [](std::uint32_t bytes) {
    return static_cast<std::uint64_t>((bytes & 0x3FFFF) >> 4);
  };
  return field(shared_address(shared)) | field(leading) << 16 | field(stride) << 32 |
         kSwizzle128 << 62;
}

// --- flags between blocks ------------------------------------------------------------------------

// Adds for the whole GPU and gives what was there: what this block did before (after a barrier) is
// seen by whoever finds the sum.
__device__ inline std::uint32_t add_acquire_release(std::uint32_t* counter, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}
// Brings the cache line of a global address to the L2 cache.
__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// --- matrices of 8 rows of 16 bytes --------------------------------------------------------------

// Four matrices; lane l gives the address of row l % 8 of matrix l / 8 and holds, of each, the pair
// of 16-bit elements 2 (l % 4) in row l / 4: with matrices (rows 0-7, 8-15) x (bytes 0-15, 16-31)
// this is the layout of a product's operand A.
__device__ inline void load_matrix_x4(std::uint32_t (&d)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(shared))
               : "memory");
}
__device__ inline void store_matrix_x4(void* shared, std::uint32_t a, std::uint32_t b,
                                       std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(shared)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// --- registers, named barriers, clusters ---------------------------------------------------------

template <int kRegisters>
__device__ inline void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Barriers 1 to 15 are free for use (0 is __syncthreads); `threads` counts both kinds of arrivals.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// The two halves of cluster_sync without its ordering of memory, for work in between.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Writes at the offset of `shared` in block `block` of the cluster, which must have started.
__device__ inline void store_cluster(unsigned long long* shared, unsigned long long value,
                                     std::uint32_t block) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(shared)), "r"(block));
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote), "l"(value) : "memory");
}
// Four floats at the offset of `shared` in block `block` of the cluster, which must not have ended.
__device__ inline float4 load_cluster(const float4* shared, std::uint32_t block) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(shared)), "r"(block));
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(remote)
               : "memory");
  return value;
}
// True in one lane of a converged warp.
__device__ inline bool elect_one() {
  std::uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(chosen));
  return chosen != 0;
}

}  // namespace orrery::sm90
