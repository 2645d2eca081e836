#pragma once

// ORRERY_HOST_DEVICE marks a function that the host runs and, where nvcc compiles it, the device as
// well: one source for a kernel and for the tests of its arithmetic on the CPU. No CUDA.

#ifdef __CUDACC__
#define ORRERY_HOST_DEVICE __host__ __device__
#else
#define ORRERY_HOST_DEVICE
#endif
