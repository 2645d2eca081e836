#pragma once

// What commands share that end when a rank fails or stops going on: the options --fail and --watch,
// and the watch of the command's own thread.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/execute/run_watch.h"
#include "kernels/tool/arguments.h"

namespace orrery::tool {

struct FaultOptions {
  std::optional<Fault> fault;    // for tests: a rank is made to fail
  std::optional<Seconds> limit;  // of phases; by default each has its own
};

// --fail and --watch, read into `options`, which must outlive them.
std::vector<Option> fault_options(FaultOptions& options);

// Of this process. `last_words` gets the line of status.txt before it is printed to stderr.
RunWatch::Setup run_watch_setup(const FaultOptions& options,
                                std::function<void(const std::string& status)> last_words = {});

}  // namespace orrery::tool
