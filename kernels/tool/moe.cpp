// orrery-gpu moe: layers of mixtures of experts by themselves, in any design, timed on the GPUs
// here.
//
//   orrery-gpu moe CASES -o DIR        CASES: a file of lines as moe_cases.h has them
//
// A layer runs as often in one step as it has sets of weights, one set after the other, so that
// none is in the L2 cache when its turn comes, and its time is that of the step over their number.
// DIR gets <n>.plan, the plan of case n (one layer, one set), and rows.jsonl, a line per case:
//
//   {"case": 0, "text": "scout_tp8 tokens=64", "kernel": "moe_layer", "dtype": "bf16",
//    "shape": {"model": "scout_tp8", "tokens": 64, "design": "shuffling", "mode": "graph",
//              "load": "router", "streams": 1, "fuse": 0, "seed": 1,
//              "tp": 1, "dp": 1, "ep": 1, "comm": ""},
//    "gpus": 1, "ours_us": 130.1, "spread": 0.004, "runs": 30,     median and interquartile range
//    over
//                                                                  it, of the GPU's time per layer
//    "host_us": 131.0,              the same by the host's clock, results awaited once per step
//    "sets": 8, "weight_bytes": 534904832,        of one set, on the rank that has most
//    "launches": 9, "host_syncs": 0,              per layer, on rank 0
//    "buffer_bytes": 1048576,                     of the arena, on the rank that has most
//    "rows": 64, "active": 15, "most_rows": 9,    routed rows, experts with one, and those of the
//                                                 busiest; -1 where the router's own scores choose
//    "difference": 0.0,             of y from that of the first case with the same model, dtype,
//                                   tokens, load and seed: largest over largest
//    "revision": "…",
//    "ops_us": {"router": 3.1, …}, "busy_us": 128.0, "overlap_us": 0.0}
//                                   from a traced step of rank 0 (CUPTI), medians over the sets:
//                                   spans of each op (those of single experts added up), time in
//                                   which any ran, and in which several streams did. Absent without
//                                   CUPTI.
//
// A case that cannot run has "error" in place of what was not measured.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/execute/interrupt.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/moe_cases.h"
#include "kernels/tool/moe_layers.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path cases;
  fs::path directory;
};

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "-o" && i + 1 < arguments.size()) {
      options.directory = arguments[++i];
    } else if (!arguments[i].starts_with("-") && options.cases.empty()) {
      options.cases = arguments[i];
    } else {
      throw std::invalid_argument("moe: unknown argument '" + std::string(arguments[i]) +
                                  "', expected a file of cases and -o DIR");
    }
  }
  if (options.cases.empty() || options.directory.empty()) {
    throw std::invalid_argument("moe needs a file of cases and -o DIR");
  }
  return options;
}

}  // namespace

int moe(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  const std::vector<MoeCase> cases = read_moe_cases(options.cases);
  set_execute_environment();
  require_gpu();
  const InterruptGuard interrupts;
  return run_moe_layers(cases, options.directory) == 0 ? 0 : 1;
}

}  // namespace orrery::tool
