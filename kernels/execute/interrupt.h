#pragma once

// Ctrl-C and SIGTERM as something that is asked for, so that a run ends with its results so far.
// No CUDA.

namespace orrery {

// While one lives the first SIGINT or SIGTERM is noted and does nothing else; a second one ends the
// process as usual. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

// "SIGINT" or "SIGTERM" once it has come, else null. Any thread.
const char* interrupt_signal();
// Throws std::runtime_error "stopped by SIGINT" once it has come.
void throw_if_interrupted();

}  // namespace orrery
