#include "sim/serve/service_loop.h"

namespace orrery {

void sort_steps(std::vector<StepRecord>& steps) {
  std::ranges::sort(steps, [](const StepRecord& a, const StepRecord& b) {
    return a.start != b.start ? a.start < b.start : a.replica < b.replica;
  });
}

}  // namespace orrery
