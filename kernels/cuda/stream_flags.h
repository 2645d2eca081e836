#pragma once

// Words of device memory on which streams wait and which they set, perhaps on another GPU: by the
// stream itself, not by a kernel, so that waiting takes no SM. May be captured.

#include <cstdint>
#include <span>

#include "kernels/cuda/handles.h"

namespace orrery::cuda {

// Sets each flag to 1 once all that is ahead in the stream has been written, for other GPUs too.
// Throws std::runtime_error when the driver refuses or lacks it.
void set_flags(const Stream& stream, std::span<std::uint32_t* const> flags);
// What `stream` gets from now on waits until all flags, of its own GPU, are set; then they are 0
// again. Throws likewise.
void await_flags(const Stream& stream, std::span<std::uint32_t* const> flags);

}  // namespace orrery::cuda
