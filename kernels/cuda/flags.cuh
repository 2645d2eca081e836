#pragma once

// How blocks of one launch, or of launches on several GPUs, tell each other what is done (sm_90a):
// counters in global memory that are added to with release and read with acquire, and the fences
// that the copy engine needs beside them.

#include <cstdint>

#include "kernels/cuda/sm90.cuh"

namespace orrery::sm90 {

__device__ inline std::uint32_t load_acquire(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
// As add_acquire_release, but nothing is given back or waited for.
__device__ inline void add_release(std::uint32_t* counter, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// The same where the other side is on another GPU.
__device__ inline std::uint32_t load_acquire_system(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void add_release_system(std::uint32_t* counter, std::uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Orders ordinary accesses of global memory and those of the copy engine: between stores and the
// counter on the side that writes, between the counter and the copies on the side that reads.
__device__ inline void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace orrery::sm90
