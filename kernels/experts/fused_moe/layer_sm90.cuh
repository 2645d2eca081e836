#pragma once

// The whole of a block of fused_moe, traced or not.

#include <cstdint>

#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/route_sm90.cuh"
#include "kernels/experts/fused_moe/trace_sm90.cuh"
#include "kernels/experts/fused_moe/work_sm90.cuh"

namespace orrery::fused_moe {

// One block per SM, all at once:
//
//   scores | top-k | counts of all blocks, of all ranks | x into rows of experts | tiles, sums
//
// T is what experts multiply.
// The first four take every block through its own tokens; from there on tasks go to whoever is free
// (work_sm90.cuh).
template <typename T, typename Trace>
__device__ __forceinline__ void whole_layer(const Maps& maps, const Arguments& a, Trace trace) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::uint32_t launch = a.control->launches + 1;
  if (threadIdx.x == 0) {
    tiles::init_barriers(shared.gemm.stages);
    // The first of the launch's tickets, whoever comes first.
    atomicMax(&a.control->gemm_ticket, static_cast<unsigned long long>(launch) << 32);
    atomicMax(&a.control->combine_ticket, static_cast<unsigned long long>(launch) << 32);
    atomicMax(&a.control->quantize_ticket, static_cast<unsigned long long>(launch) << 32);
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicInc(&a.control->blocks, gridDim.x - 1) == gridDim.x - 1) {
    a.control->launches = launch;  // all blocks have read it
  }
  trace.begin();
  Ring<Config::kStages> ring;
  if (!route<T>(shared, tables_in(shared, a), maps, a, ring, launch, trace)) {
    spoil(a);
    return;
  }
  if (threadIdx.x < 128) {
    sm90::registers_decrease<56>();
    const Tables tables = tables_in(shared, a);
    if (threadIdx.x == 0) produce<T>(shared, tables, maps, a, ring, launch, trace);
    __syncwarp();
    const unsigned warp = threadIdx.x / 32;
    if constexpr (sizeof(T) == 1) {
      if (warp == 1 || warp == 2) quantize(a, tables, launch, trace);
    }
    combine(a, shared.tables.results, launch, trace);
  } else {
    sm90::registers_increase<224>();
    consume<T>(shared, maps, a, ring, static_cast<int>(threadIdx.x) / 128 - 1, launch, trace);
    combine(a, shared.tables.results, launch, trace);
  }
  __syncthreads();
  trace.end();
  if (*reinterpret_cast<volatile std::uint32_t*>(&a.control->stuck) != 0) spoil(a);
}

}  // namespace orrery::fused_moe
