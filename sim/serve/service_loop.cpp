#include "sim/serve/service_loop.h"

namespace orrery {

void sort_steps(std::vector<StepRecord>& steps) {
  const auto is_before = [](const StepRecord& a, const StepRecord& b) {
    return a.start != b.start ? a.start < b.start : a.replica < b.replica;
  };
  std::vector<std::vector<StepRecord>::iterator> ends{
      steps.begin()};  // of what is in order already
  while (ends.back() != steps.end()) {
    ends.push_back(std::is_sorted_until(ends.back(), steps.end(), is_before));
  }
  const std::size_t num_runs = ends.size() - 1;
  for (std::size_t size = 1; size < num_runs; size *= 2) {
    for (std::size_t i = 0; i + size < num_runs; i += 2 * size) {
      std::inplace_merge(ends[i], ends[i + size], ends[std::min(i + 2 * size, num_runs)],
                         is_before);
    }
  }
}

}  // namespace orrery
