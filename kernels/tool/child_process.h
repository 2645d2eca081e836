#pragma once

// Runs this program as a child, to see how it ends.

#include <functional>
#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery::tool {

struct ChildRun {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "NAME=value", besides this process's
  // What a line of its output begins or ends with when the failure happens; empty: the start.
  std::string mark;
  std::function<void(int process)> on_mark = [](int) {};
  Seconds limit{60};  // then it is killed
  // Becomes kChildSocket of the child, and is closed here; -1: none.
  int socket = -1;
};

inline constexpr int kChildSocket = 3;

struct ChildResult {
  int exit_code = 0;  // negative: the signal that killed it
  bool was_killed_by_limit = false;
  std::string output;  // standard output and error
  Seconds after_mark;  // from the mark to its end
  bool was_marked = false;
};

// Throws std::system_error when it cannot be started.
ChildResult run_child(const ChildRun& run);

}  // namespace orrery::tool
