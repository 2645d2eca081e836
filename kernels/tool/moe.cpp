// orrery-gpu moe: layers of mixtures of experts by themselves, in any design, timed on the GPUs
// here.
//
//   orrery-gpu moe CASES -o DIR        CASES: a file of lines as moe_cases.h has them
//
// A layer runs as often in one step as it has sets of weights, one set after the other, so that
// none is in the L2 cache when its turn comes, and its time is that of the step over their number.
// DIR gets <n>.plan, the plan of case n (one layer, one set), <n>.spans.csv, when each op of all
// sets ran on each rank, <n>.kernels.csv, what they launched (executed_files.h), <n>.ops.csv, from
// a traced step, of rank 0: the span of each op by name (those of single experts added up), medians
// over the sets; and rows.csv, a line per case:
//
//   case, text     its number and line
//   kernel, dtype  "moe_layer", the format of experts and activations
//   model, tokens, design, mode, load, impose, streams, fuse, gather, seed, tp, dp, ep, comm,
//   chunks: its shape
//   gpus, revision
//   ours_us        of a layer by the GPUs' clocks: the median of `runs` steps
//   spread         interquartile range over the median
//   host_us        the same by the host's clock
//   sets           of weights; weight_bytes of one, on the rank that has most
//   launches       kernels, copies and memsets of a layer on rank 0; host_syncs likewise
//   buffer_bytes   of the arena of one layer, on the rank that has most
//   rows           routed rows; active: experts with one; most_rows: of the busiest (where scores
//                  are imposed, and of design persistent with a bias)
//   difference     of y from that of the first case of the same model, dtype, tokens, load (and
//                  how it is imposed) and seed: largest over largest
//   busy_us        from that traced step: time in which any op of a layer runs; overlap_us: in
//                  which several do; comm_us: in which collectives do, and comm_share of busy_us;
//                  exposed_us: in which nothing else does. None of these of a kernel that sends
//                  rows to other ranks by itself: no part of its time is told apart
//
//   late_us        by which a rank came late on purpose, mean over the sets; late_back_us
//   likewise
//                  before the exchange of results; jitter as the case says
//
// What is from a traced step needs CUPTI. With one set the weights that a layer reads stay in
// the L2 cache from step to step if they are smaller.
//
// A case that cannot run has an `error` in place of what was not measured.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/execute/interrupt.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/moe_cases.h"
#include "kernels/tool/moe_layers.h"
#include "kernels/tool/run_faults.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path cases;
  fs::path directory;
  FaultOptions faults;
};

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  std::vector<Option> known = fault_options(options.faults);
  known.push_back({"-o", [&](const Value& value) { options.directory = value.text; }});
  options.cases = read_arguments("moe", arguments, known, "a file of cases and -o DIR");
  if (options.directory.empty()) throw std::invalid_argument("moe needs -o DIR");
  return options;
}

}  // namespace

int moe(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  const std::vector<MoeCase> cases = read_moe_cases(options.cases);
  set_execute_environment();
  RunWatch watch(run_watch_setup(options.faults));
  watch.run(RunPhase::kStart, require_gpu);
  const InterruptGuard interrupts;
  return run_moe_layers(cases, options.directory, options.faults, watch) == 0 ? 0 : 1;
}

}  // namespace orrery::tool
