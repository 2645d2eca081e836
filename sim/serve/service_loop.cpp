#include "sim/serve/service_loop.h"

namespace orrery {

std::vector<RequestRecord> new_records(const Workload& workload) {
  std::vector<RequestRecord> records(workload.requests.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Request& request = workload.requests[i];
    records[i].id = request.id;
    records[i].prompt_tokens = request.prompt_tokens;
    records[i].output_tokens = request.output_tokens;
  }
  return records;
}

void sort_steps(std::vector<StepRecord>& steps) {
  std::ranges::sort(steps, [](const StepRecord& a, const StepRecord& b) {
    return a.start != b.start ? a.start < b.start : a.replica < b.replica;
  });
}

}  // namespace orrery
