#pragma once

// Streams over device memory as fast as the chip gives them: what a memory-bound kernel is measured
// against, and its stand-in beside other kernels (kernels/probes/corun.h).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/harness/probe.h"

namespace orrery {

enum class StreamKind : std::uint8_t { kRead, kWrite, kCopy };
std::string_view to_text(StreamKind kind);  // "read" "write" "copy"

// 16-byte accesses, or the bulk copy engine (not for writes).
enum class StreamMethod : std::uint8_t { kLoads, kBulk };

// How an SM splits its 256 KiB between cache and shared memory while kLoads runs. An SM changes the
// split only when it is empty, so kernels that want another one wait for it.
enum class MemorySplit : std::uint8_t { kDefault, kShared };

struct StreamShape {
  StreamMethod method = StreamMethod::kBulk;
  MemorySplit split = MemorySplit::kDefault;
  int blocks = 0;  // 0: as many as fill the GPU
  int rounds = 1;  // times that the launch goes over its bytes
};

// What one launch moves. `bytes` is a multiple of 64 KiB, pointers are 16-byte aligned.
//   kRead    `source` [bytes]; the exclusive or of its 32-bit words is xored into *sum
//   kWrite   `target` [bytes]; word i becomes stream_pattern(i)
//   kCopy    `target` = `source`
struct StreamOperands {
  const void* source = nullptr;
  void* target = nullptr;
  std::uint32_t* sum = nullptr;
  std::size_t bytes = 0;
};

// The pattern repeats every 512 bytes, which divides every tile.
__host__ __device__ inline std::uint32_t stream_pattern(std::size_t word) {
  return static_cast<std::uint32_t>(word % 128) * 2654435761U;
}

// Throws std::invalid_argument for other sizes. No bytes: no launch.
void stream_memory(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                   const StreamShape& shape);

// Rows "stream_read", "stream_write", "stream_copy" over size (64 KiB to 4 GiB) with warm and cold
// L2, each by the faster method; a copy of `bytes` moves twice that. Checks first that the streams
// move what they should and throws std::runtime_error if not. Needs 8 GiB of device memory; about
// ten seconds.
std::vector<ProbeRow> probe_stream();

}  // namespace orrery
