#pragma once

// What the functions of the C interface share. Each takes the caller's cudaStream_t first,
// enqueues, and returns 0, or 1 with the message in orrery_last_error().

#include <exception>
#include <string>

#include "kernels/cuda/handles.h"

namespace orrery::compare {

// Of the last call that failed on this thread.
std::string& last_error();

template <typename Call>
int guarded(void* stream, Call&& call) {
  try {
    call(cuda::Stream::borrow(static_cast<cudaStream_t>(stream)));
    return 0;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return 1;
  }
}

}  // namespace orrery::compare
