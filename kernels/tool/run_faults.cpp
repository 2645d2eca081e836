#include "kernels/tool/run_faults.h"

#include <cstdio>
#include <utility>

#include "kernels/comm/processes/process_group.h"

namespace orrery::tool {

std::vector<Option> fault_options(FaultOptions& options) {
  return {{"--fail", [&](const Value& value) { options.fault = parse_fault(value.text); }},
          {"--watch", [&](const Value& value) {
             options.limit = Seconds(static_cast<double>(value.whole(1)));
           }}};
}

RunWatch::Setup run_watch_setup(const FaultOptions& options,
                                std::function<void(const std::string& status)> last_words) {
  return {.rank = launched_rank(),
          .fault = options.fault,
          .limit = options.limit,
          .last_words = [last_words = std::move(last_words)](const std::string& status) {
            if (last_words) last_words(status);
            std::fprintf(stderr, "orrery-gpu: %s\n", status.c_str());
          }};
}

}  // namespace orrery::tool
