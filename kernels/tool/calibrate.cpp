// orrery-gpu calibrate: times kernels into tables, or judges the tables by held-out shapes.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/calibrate/gpu_timer.h"
#include "kernels/calibrate/known_devices.h"
#include "kernels/calibrate/op_list.h"
#include "kernels/calibrate/points.h"
#include "kernels/calibrate/progress_bar.h"
#include "kernels/calibrate/refine.h"
#include "kernels/calibrate/schedule.h"
#include "kernels/calibrate/tables.h"
#include "kernels/cuda/launch.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/probes.h"
#include "kernels/tool/run_faults.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr Seconds kFullBudget{540};
constexpr Seconds kQuickBudget{75};
constexpr int kShapesPerFormat = 40;

struct Options {
  std::vector<std::string_view> kernels;
  Seconds budget = kFullBudget;
  bool quick = false;
  bool check = false;
  bool fresh = false;
  int device = 0;
  int shapes = kShapesPerFormat;
  std::uint64_t seed = 1;
  std::string revision = ORRERY_REVISION;
  fs::path ops;  // of calls that are measured alone; empty: the grids
  fs::path directory;
  FaultOptions faults;
};

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  std::vector<Option> known = {
      {"--quick",
       [&] {
         options.quick = true;
         options.budget = kQuickBudget;
       }},
      {"--check", [&] { options.check = true; }},
      {"--fresh", [&] { options.fresh = true; }},
      {"--kernels", [&](const Value& value) { options.kernels = split(value.text, ','); }},
      {"--budget",
       [&](const Value& value) { options.budget = Seconds(static_cast<double>(value.whole(1))); }},
      {"--device", [&](const Value& value) { options.device = value.small(0); }},
      {"--shapes", [&](const Value& value) { options.shapes = value.small(0); }},
      {"--seed",
       [&](const Value& value) { options.seed = static_cast<std::uint64_t>(value.whole(0)); }},
      {"--revision", [&](const Value& value) { options.revision = value.text; }},
      {"--ops", [&](const Value& value) { options.ops = value.text; }},
      {"-o", [&](const Value& value) { options.directory = value.text; }}};
  for (Option& option : fault_options(options.faults)) known.push_back(std::move(option));
  read_arguments("calibrate", arguments, known);
  if (options.directory.empty()) throw std::invalid_argument("calibrate needs -o DIR");
  if (!options.ops.empty() && (options.check || !options.kernels.empty())) {
    throw std::invalid_argument("--ops says which calls are measured; it goes without " +
                                std::string(options.check ? "--check" : "--kernels"));
  }
  return options;
}

void use_device(int device) {
  int count = 0;
  ORRERY_CUDA(cudaGetDeviceCount(&count));
  if (device >= count) {
    throw std::invalid_argument("--device: found " + std::to_string(device) + "; there are " +
                                std::to_string(count) + " GPUs, counted from 0");
  }
  ORRERY_CUDA(cudaSetDevice(device));
}

using Kernels = std::vector<calibrate::KernelGrids>;

Kernels grids_of(const std::vector<const GpuKernel*>& kernels) {
  Kernels grids;
  for (const GpuKernel* kernel : kernels) {
    grids.push_back({.spec = &kernel_spec(kernel->name), .grids = kernel->grids()});
  }
  return grids;
}

// The grids of `kernels`, or only `ops` where there are some.
int measure_tables(const Options& options, const Kernels& kernels, const std::vector<KernelOp>& ops,
                   const Device& device, calibrate::GpuTimer& timer, RunWatch& watch) {
  calibrate::Journal journal(options.directory / "journal.txt", timer.facts(options.revision),
                             options.fresh);
  const std::size_t known = journal.rows().size();
  if (known > 0) std::fprintf(stderr, "%zu rows measured before are kept\n", known);
  const auto time_point = [&](const KernelOp& op, std::span<const calibrate::State> states,
                              bool power) {
    return watch.run(
        RunPhase::kCall, [&] { return timer.time_point(op, states, power); }, describe(op));
  };
  if (ops.empty()) {
    calibrate::ProgressBar bar(stderr);
    calibrate::measure_all(kernels, device, {.budget = options.budget}, journal, time_point,
                           [&](const calibrate::Progress& progress) { bar.show(progress); });
  } else {
    calibrate::ProgressBar bar(stderr);
    const Clock::time_point begin = Clock::now();
    calibrate::measure_ops(ops, journal, time_point, [&](std::size_t done) {
      bar.show({.kernel = ops[done - 1].kernel,
                .points = static_cast<int>(done),
                .spent = Seconds(static_cast<double>(done)),
                .budget = Seconds(static_cast<double>(ops.size()))});
      const std::chrono::duration<double> spent = Clock::now() - begin;
      return Seconds(spent.count()) < options.budget;
    });
  }
  watch.run(RunPhase::kResults,
            [&] { calibrate::write_tables(options.directory, device.name, journal); });
  const auto refused = std::ranges::count_if(
      journal.rows(), [](const calibrate::Row& row) { return !row.refusal.empty(); });
  std::printf("%zu rows, %zu of them new, %td refused (why: journal.txt); tables of %s in %s\n",
              journal.rows().size(), journal.rows().size() - known, refused, device.name.c_str(),
              options.directory.c_str());
  return 0;
}

// Random shapes of one grid that the kernel takes.
std::vector<calibrate::Row> measure_held_out(const calibrate::KernelGrids& kernel, const Grid& grid,
                                             const Options& options, const Device& device,
                                             calibrate::GpuTimer& timer, RunWatch& watch) {
  constexpr int kMostRefused = 20;  // per shape wanted
  const calibrate::Refiner refiner(*kernel.spec, kernel.grids, device);
  const auto is_axis = [&](std::string_view dim) { return refiner.is_axis(dim); };
  const calibrate::State state;
  std::vector<calibrate::Row> rows;
  for (int i = 0; i < options.shapes * kMostRefused; ++i) {
    if (static_cast<int>(rows.size()) == options.shapes) break;
    const KernelOp op = calibrate::random_point(
        *kernel.spec, grid, is_axis, options.seed * 1000003 + static_cast<std::uint64_t>(i));
    if (grid.accept != nullptr && !grid.accept(op.dims)) continue;
    std::vector<calibrate::Row> found = watch.run(
        RunPhase::kCall, [&] { return timer.time_point(op, {&state, 1}, false); }, describe(op));
    for (calibrate::Row& row : found) {
      if (row.refusal.empty()) rows.push_back(std::move(row));
    }
  }
  return rows;
}

int check_tables(const Options& options, const Kernels& kernels, const Device& device,
                 calibrate::GpuTimer& timer, RunWatch& watch) {
  std::vector<calibrate::Judged> judged;
  calibrate::ProgressBar bar(stderr);
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    if (!fs::exists(options.directory / (std::string(kernels[k].spec->name) + ".csv"))) continue;
    std::vector<calibrate::Row> rows;
    for (const Grid& grid : kernels[k].grids) {
      for (calibrate::Row& row :
           measure_held_out(kernels[k], grid, options, device, timer, watch)) {
        rows.push_back(std::move(row));
      }
      bar.show({.kernel = std::string(kernels[k].spec->name),
                .points = static_cast<int>(rows.size()),
                .spent = Seconds(static_cast<double>(k)),
                .budget = Seconds(static_cast<double>(kernels.size()))});
    }
    for (auto& one : calibrate::judge(options.directory, device, rows)) judged.push_back(one);
  }
  if (judged.empty()) {
    throw std::invalid_argument(options.directory.string() +
                                " holds no table of these kernels; measure first");
  }
  std::vector<calibrate::Fact> facts = timer.facts(options.revision);
  facts.push_back({.name = "seed", .value = std::to_string(options.seed)});
  const std::string text = calibrate::held_out_text(facts, judged);
  std::ofstream(options.directory / "held_out.txt") << text;
  std::fputs(text.substr(0, text.find("\n\n") + 1).c_str(), stdout);
  return 0;
}

}  // namespace

int calibrate(std::span<const std::string_view> arguments) {
  Options options = parse(arguments);
  const std::vector<const GpuKernel*> kernels = select_kernels(options.kernels);
  const std::vector<KernelOp> ops =
      options.ops.empty() ? std::vector<KernelOp>() : orrery::calibrate::read_ops(options.ops);
  for (const KernelOp& op : ops) (void)gpu_kernel(op.kernel);  // known, and built here
  RunWatch watch(run_watch_setup(options.faults));
  watch.run(RunPhase::kStart, [&] {
    require_gpu();
    use_device(options.device);
    require_gpu();  // of the device that was chosen
  });
  fs::create_directories(options.directory);
  orrery::calibrate::GpuTimer timer;
  const Device device = orrery::calibrate::known_device(cuda::device_properties().name);
  // Before the board is warm; a run for some kernels or calls is none of the device.
  const bool is_whole = !options.check && options.kernels.empty() && options.ops.empty();
  if (is_whole && timer.has_board()) {
    const Clock::time_point begin = Clock::now();
    std::fprintf(stderr, "launches, clocks, power limit\n");
    if (options.fresh) fs::remove_all(options.directory / "device");
    watch.run(RunPhase::kCall,
              [&] { write_device_probes(options.directory / "device", options.quick); });
    const std::chrono::duration<double> spent = Clock::now() - begin;
    options.budget -= Seconds(spent.count());
  }
  return options.check ? check_tables(options, grids_of(kernels), device, timer, watch)
                       : measure_tables(options, grids_of(kernels), ops, device, timer, watch);
}

}  // namespace orrery::tool
