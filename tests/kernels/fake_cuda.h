#pragma once

// The part of the CUDA runtime that copies between GPU and host use, without a GPU: memory is the
// host's, and what streams have is done as early, as late or as anyhow as their order and the
// events between them let it (fake_cuda.cpp has the runtime's functions).

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace orrery::testing {

enum class StreamTiming : std::uint8_t { kEager, kLazy, kRandom };
void set_stream_timing(StreamTiming timing);
// What a kernel would do.
void enqueue_call(cudaStream_t stream, std::function<void()> call);

}  // namespace orrery::testing
