#include "kernels/tool/moe_layers.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/executed_files.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/interrupt.h"
#include "kernels/execute/rank_program.h"
#include "kernels/tool/environment.h"
#include "kernels/tool/layer_row.h"
#include "kernels/tool/moe_delays.h"
#include "kernels/tool/moe_run.h"
#include "sim/memory/buffers.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr int kRepeats = 30;
constexpr Seconds kTimeLimit{1};
constexpr double kMicro = 1e6;
// As many sets of weights as that takes, but no more than a graph should have layers.
constexpr double kSetBytes = 4.8e10;
constexpr int kMostSets = 16;

struct LayerCase {
  const MoeCase* one = nullptr;
  int number = 0;
  int sets = 1;
  Plan whole;
  Plan plan;   // one after the other of all sets
  Plan layer;  // one of them
};

// What is imposed on the router's logits, which an executor keeps.
std::string bias_of(const MoeCase& one) {
  return imposes_bias(one) ? one.load + " " + std::to_string(one.seed) : "";
}
using GroupKey = std::tuple<std::string, DType, int, int, int, std::string>;
GroupKey group_of(const MoeCase& one) {
  return {one.model, one.dtype, one.mesh.tp, one.mesh.dp, one.mesh.ep, bias_of(one)};
}
// Cases whose output is the same.
using OutputKey = std::tuple<std::string, DType, std::int64_t, std::string, bool, std::uint64_t>;
OutputKey output_of(const MoeCase& one) {
  return {one.model, one.dtype, one.tokens, one.load, imposes_bias(one), one.seed};
}

int num_sets(const Plan& whole) {
  const double fit = kSetBytes / memory_of(whole, 0).weights.value();
  return std::clamp(static_cast<int>(fit), 1, kMostSets);
}

void set_routed_rows(LayerRow& row, const std::vector<std::int32_t>& counts) {
  if (counts.empty()) return;
  row.set("rows", std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  row.set("active", std::int64_t{std::ranges::count_if(counts, [](auto n) { return n > 0; })});
  row.set("most_rows", std::int64_t{std::ranges::max(counts)});
}

class LayerRuns {
 public:
  LayerRuns(std::span<const MoeCase> cases, fs::path directory, const FaultOptions& faults,
            RunWatch& watch)
      : cases_(cases), directory_(std::move(directory)), faults_(faults), watch_(watch) {
    fs::create_directories(directory_);
    facts_ = environment(cuda::device_count());
    problem_ = kernel_trace_problem();
    if (!problem_.empty()) std::fprintf(stderr, "no spans: %s\n", problem_.c_str());
  }

  int run() {
    std::printf("%-70s %5s %10s %8s %8s %5s\n", "layer", "runs", "us", "spread", "launches",
                "syncs");
    std::vector<GroupKey> keys;
    std::map<GroupKey, std::vector<LayerCase>> groups;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      rows_.push_back(row_of(cases_[i], static_cast<int>(i)));
      rows_.back().set("revision", facts_.at("revision"));
      const GroupKey key = group_of(cases_[i]);
      guarded(static_cast<int>(i), [&] {
        LayerCase layer = lowered(static_cast<int>(i));
        if (!groups.contains(key)) keys.push_back(key);
        groups[key].push_back(std::move(layer));
      });
    }
    for (const GroupKey& key : keys) run_group(groups.at(key));
    return num_failed_;
  }

 private:
  // What a case throws is that case's: its row says it.
  template <typename Run>
  bool guarded(int number, const Run& run) {
    const auto i = static_cast<std::size_t>(number);
    std::string problem;
    try {
      throw_if_interrupted();
      run();
    } catch (const std::exception& error) {
      problem = error.what();
      ++num_failed_;
      rows_[i].set("error", problem);
      std::printf("%-70s %s\n", cases_[i].text.c_str(), problem.c_str());
    }
    std::fflush(stdout);
    save();
    return problem.empty();
  }

  void save() const {
    const fs::path file = directory_ / "rows.csv";
    if (!(std::ofstream(file) << to_csv(rows_)).flush()) {
      throw std::runtime_error(file.string() + ": cannot be written");
    }
  }

  LayerCase lowered(int number) const {
    const MoeCase& one = cases_[static_cast<std::size_t>(number)];
    const int gpus = num_ranks(one.mesh);
    if (gpus > cuda::device_count()) {
      throw std::invalid_argument("needs " + std::to_string(gpus) + " GPUs; there are " +
                                  std::to_string(cuda::device_count()));
    }
    LayerCase layer{.one = &one, .number = number};
    const Plan whole = moe_plan(one);
    Mesh mesh = one.mesh;
    if (mesh.ep > 1) mesh.expert_load = moe_lowering(one).expert_load;
    layer.layer = parallelize(whole, mesh);
    const int sets = num_sets(whole);
    layer.sets = sets;
    layer.whole = chained(whole, sets);
    layer.plan = chained(layer.layer, sets);
    std::ofstream stream(directory_ / (std::to_string(number) + ".plan"));
    stream << to_text(layer.layer);
    return layer;
  }

  [[nodiscard]] ExecutorSetup setup_of(const std::vector<LayerCase>& cases) const {
    const auto most = std::ranges::max_element(
        cases, {}, [](const LayerCase& layer) { return layer.one->tokens; });
    ExecutorSetup setup = layer_setup(*most->one, most->plan);
    setup.fault = faults_.fault;
    setup.delay_before = [this](int rank, const std::string& op) {
      const auto found = delays_.before.find({rank, op});
      return found == delays_.before.end() ? Seconds(0) : found->second;
    };
    setup.watch_limit = faults_.limit;
    setup.last_words = run_watch_setup(faults_).last_words;
    return setup;
  }

  void run_group(const std::vector<LayerCase>& cases) {
    std::unique_ptr<Executor> executor;
    const auto start = [&](const LayerCase& layer) {
      return guarded(layer.number, [&] {
        // One that failed runs nothing more.
        if (!executor) executor = std::make_unique<Executor>(setup_of(cases));
      });
    };
    std::vector<const LayerCase*> timed;
    for (const LayerCase& layer : cases) {
      if (!start(layer)) continue;
      if (guarded(layer.number, [&] { time(*executor, layer); })) {
        timed.push_back(&layer);
      } else {
        executor.reset();
      }
    }
    if (problem_.empty()) {
      for (const LayerCase* layer : timed) {
        if (!start(*layer)) continue;
        if (!guarded(layer->number, [&] { trace(*executor, *layer); })) executor.reset();
      }
    }
    watch_.run(RunPhase::kTeardown, [&] { executor.reset(); });
  }

  std::unique_ptr<PreparedStep> warm(Executor& executor, const LayerCase& layer) {
    delays_ = layer_delays(*layer.one, layer.layer, layer.sets);
    auto step = prepared_layer(executor, *layer.one, layer.plan);
    for (int i = 0; i < kWarmUps; ++i) static_cast<void>(executor.run(*step, {}));
    return step;
  }

  void time(Executor& executor, const LayerCase& layer) {
    const MoeCase& one = *layer.one;
    const auto step = warm(executor, layer);
    const int sets = layer.sets;
    std::vector<double> device;
    std::vector<double> host;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRepeats; ++i) {
      const std::chrono::duration<double> spent = Clock::now() - start;
      if (i >= kWarmUps && spent.count() > kTimeLimit.value()) break;
      const StepOutput run = executor.run(*step, {});
      device.push_back(run.device.value() / sets);
      host.push_back(run.duration.value() / sets);
    }
    LayerRow& row = rows_[static_cast<std::size_t>(layer.number)];
    const Spread spread = spread_of(device);
    const std::int64_t launches = executor.num_launches(*step, 0) / sets;
    const auto syncs = std::ssize(host_waits(layer.layer, 0));
    Bytes weights;
    std::int64_t buffers = 0;
    for (int rank = 0; rank < layer.layer.num_ranks(); ++rank) {
      weights = std::max(weights, memory_of(layer.layer, rank).weights);
      buffers = std::max(buffers, plan_buffers(layer.layer, rank).arena_bytes);
    }
    row.set("ours_us", spread.median * kMicro);
    row.set("spread", spread.relative);
    row.set("runs", std::ssize(device));
    row.set("host_us", spread_of(host).median * kMicro);
    row.set("sets", std::int64_t{sets});
    row.set("weight_bytes", static_cast<std::int64_t>(weights.value()));
    row.set("launches", launches);
    row.set("host_syncs", static_cast<std::int64_t>(syncs));
    if (!delays_.before.empty()) {
      row.set("jitter", one.jitter);
      row.set("late_us", delays_.at_begin.value() * kMicro);
      row.set("late_back_us", delays_.at_results.value() * kMicro);
    }
    row.set("buffer_bytes", buffers);
    const bool makes_scores = imposes_bias(one) && one.design == MoeDesign::kPersistent;
    set_routed_rows(
        row, makes_scores ? made_rows(executor, layer, *step) : imposed_rows(one, layer.whole));
    const std::vector<float> y = layer_output(
        one, [&](int rank) { return executor.take(*step, rank, chained_output(sets)); });
    const auto [first, is_first] = outputs_.try_emplace(output_of(one), y);
    row.set("difference", layer_difference(y, first->second));
    std::printf("%-70s %5zu %10.2f %7.2f%% %8lld %5lld\n", one.text.c_str(), device.size(),
                spread.median * kMicro, spread.relative * 100, static_cast<long long>(launches),
                static_cast<long long>(syncs));
  }

  // Of the last layer of a step that has run, from the scores that it has left.
  static std::vector<std::int32_t> made_rows(const Executor& executor, const LayerCase& layer,
                                             const PreparedStep& step) {
    const std::string scores = chained_name("router", layer.sets);
    return chosen_rows(*layer.one, layer.whole,
                       rows_of_tokens(*layer.one, moe_model(layer.one->model).num_experts,
                                      [&](int rank) { return executor.take(step, rank, scores); }));
  }

  void trace(Executor& executor, const LayerCase& layer) {
    const auto step = warm(executor, layer);
    const StepTrace traced = executor.trace(*step, {});
    const std::string number = std::to_string(layer.number);
    std::ofstream(directory_ / (number + ".spans.csv")) << spans_csv(traced.timeline);
    std::ofstream(directory_ / (number + ".kernels.csv")) << kernels_csv(traced);
    const LayerSpans spans = layer_spans(layer.plan, traced.timeline, 0);
    std::ofstream ops(directory_ / (number + ".ops.csv"));
    ops << "op,us\n";
    for (const auto& [name, time] : spans.ops) ops << name << "," << time.value() * kMicro << "\n";
    LayerRow& row = rows_[static_cast<std::size_t>(layer.number)];
    row.set("busy_us", spans.busy.value() * kMicro);
    row.set("overlap_us", spans.overlap.value() * kMicro);
    const bool sends_inside =
        layer.one->design == MoeDesign::kPersistent && layer.layer.num_ranks() > 1;
    if (sends_inside) return;
    row.set("comm_us", spans.communication.value() * kMicro);
    row.set("comm_share", spans.communication.value() / spans.busy.value());
    row.set("exposed_us", spans.exposed.value() * kMicro);
  }

  std::span<const MoeCase> cases_;
  fs::path directory_;
  const FaultOptions& faults_;
  RunWatch& watch_;
  std::map<std::string, std::string> facts_;
  std::string problem_;  // why there are no traces
  std::vector<LayerRow> rows_;
  std::map<OutputKey, std::vector<float>> outputs_;
  MoeDelays delays_;  // of the case that runs
  int num_failed_ = 0;
};

}  // namespace

int run_moe_layers(std::span<const MoeCase> cases, const fs::path& directory,
                   const FaultOptions& faults, RunWatch& watch) {
  return LayerRuns(cases, directory, faults, watch).run();
}

}  // namespace orrery::tool
