#pragma once

// What runs beside what in the co-run measurements: loads that each use one resource of the GPU,
// with the number of SMs that they take as a parameter.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/handles.h"

namespace orrery {

// One load with buffers of its own, launched any number of times on one stream.
class Load {
 public:
  virtual ~Load() = default;
  Load() = default;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  virtual void launch(const cuda::Stream& stream) = 0;  // may be captured in a graph
};

struct LoadKind {
  std::string name;  // "read bytes=536870912 blocks=32": a word, then dims
  std::function<std::unique_ptr<Load>()> make;  // on the current device
};

// The loads of one GPU, and, where there is a second one that it can reach, traffic to it:
//   gemm m n k sms     bf16 GEMM (cuBLASLt) made for `sms` SMs, 0: all
//   read, write, copy bytes blocks   streams past the L2 cache (kernels/probes/stream.h); blocks=0:
//   a
//                      grid of small blocks that fills the GPU several times over, as most
//                      element-wise kernels are. Their SMs are split between cache and shared
//                      memory as the other loads need it, or (split=default) as they are for a
//                      kernel without shared memory: then an SM must run empty between the two
//   l2_read bytes      the same 24 MiB read again and again by all SMs
//   hold blocks        blocks that keep an SM each and use nothing else
//   peer_copy bytes    the copy engine to the second GPU
//   peer_all_reduce bytes   NCCL's all-reduce with the second GPU
//   peer_write bytes blocks   SMs that copy to the second GPU
std::vector<LoadKind> load_kinds();

}  // namespace orrery
