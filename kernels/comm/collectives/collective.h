#pragma once

// One collective call, and NCCL's way of making it.

#include <cstdint>

#include "kernels/cuda/handles.h"
#include "kernels/cuda/nccl.h"
#include "sim/plan/plan.h"

namespace orrery {

// `count` elements are the whole buffer as nccl-tests prints it, on each rank of n:
//   all_reduce, broadcast   input and output [count]
//   all_gather              input [count / n], output [count]
//   reduce_scatter          input [count], output [count / n]
//   all_to_all              input and output [count]: n parts, part p of the input goes to rank p
//   send_recv               input of rank 0 [count] to the output of rank 1; others do nothing
// broadcast: from rank 0.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DType dtype = DType::kBf16;
  std::int64_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

std::int64_t input_count(CollectiveKind kind, std::int64_t count, int num_ranks);
std::int64_t output_count(CollectiveKind kind, std::int64_t count, int num_ranks);

// Enqueues this rank's part; every rank calls, each from its own thread or within one NCCL group.
// May be captured. Throws std::invalid_argument for a dtype NCCL lacks or a count that n does not
// divide where it must; cuda::NcclError.
void nccl_collective(const cuda::Communicator& communicator, const cuda::Stream& stream,
                     const CollectiveCall& call);

}  // namespace orrery
