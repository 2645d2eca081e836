#pragma once

// The part of the CUDA runtime by which processes share memory, without a GPU: device memory is the
// host's, in files that other processes can open (fake_shared_cuda.cpp has the runtime's
// functions). cudaFree of memory that somebody has mapped fails, where CUDA's behaviour is
// undefined.

namespace orrery::testing {

struct SharedCuda {
  int device = 0;                // GPUs are 0000:00:00.0, 0000:01:00.0, ...
  int without_access = -1;       // a GPU that the current one does not reach
  bool has_memory = true;        // else cudaMalloc fails
  bool dies_on_opening = false;  // the process is killed when it opens memory
  int num_allocated = 0;
  int num_mapped = 0;
};
SharedCuda& shared_cuda();

}  // namespace orrery::testing
