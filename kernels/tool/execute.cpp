// orrery-gpu execute: runs the prepared steps of a directory, and its layers of experts by
// themselves, on the GPUs here and writes their times, spans and memory to DIR/executed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/draw_input.h"
#include "kernels/execute/executed_files.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/interrupt.h"
#include "kernels/execute/layer_inputs.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/execute/rank_error.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/run_watch.h"
#include "kernels/execute/step_cases.h"
#include "kernels/harness/operands.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/environment.h"
#include "kernels/tool/executor_setup.h"
#include "kernels/tool/late_ranks.h"
#include "kernels/tool/processes.h"
#include "kernels/tool/run_faults.h"
#include "kernels/tool/spread.h"
#include "sim/units/nearest.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 2;
constexpr int kLeastRepeats = 3;
// How often launches are timed, of steps that do not take long (seconds).
constexpr int kLaunchRuns = 5;
constexpr double kShort = 0.1;

struct Options {
  fs::path directory;
  int gpus = 0;  // 0: as many as the plan has ranks
  int repeats = 20;
  Seconds step_limit{2};  // of the timed iterations of a step
  std::vector<std::string> only;
  bool traces = true;
  std::vector<std::string> traced;            // empty: all
  std::optional<std::int64_t> num_kv_blocks;  // per rank, in place of the deployment's
  bool only_nccl = false;
  bool checks_finite = false;
  LateRanks late;  // of layers by themselves
  FaultOptions faults;
};

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  const auto names = [](const Value& value) {
    const std::vector<std::string_view> words = split(value.text, ',');
    return std::vector<std::string>(words.begin(), words.end());
  };
  std::vector<Option> known = {
      {"--gpus", [&](const Value& value) { options.gpus = value.small(1); }},
      {"--repeats", [&](const Value& value) { options.repeats = value.small(1); }},
      {"--seconds",
       [&](const Value& value) {
         options.step_limit = Seconds(static_cast<double>(value.whole(1)));
       }},
      {"--only", [&](const Value& value) { options.only = names(value); }},
      {"--trace", [&] { options.traces = true; }},
      {"--trace-only", [&](const Value& value) { options.traced = names(value); }},
      {"--no-trace", [&] { options.traces = false; }},
      {"--num-kv-blocks", [&](const Value& value) { options.num_kv_blocks = value.whole(1); }},
      {"--only-nccl", [&] { options.only_nccl = true; }},
      {"--check-finite", [&] { options.checks_finite = true; }}};
  for (Option& option : late_options(options.late)) known.push_back(std::move(option));
  for (Option& option : fault_options(options.faults)) known.push_back(std::move(option));
  options.directory = read_arguments("execute", arguments, known, kPreparedDirectory);
  return options;
}

// The first `ranks` GPUs here; of several processes, the one for this process's rank.
std::vector<int> devices_for(const Options& options, int ranks) {
  if (const ProcessGroup& group = processes(); group.size > 1) {
    if (group.size != ranks) {
      throw std::invalid_argument("the plan has " + std::to_string(ranks) +
                                  " ranks, a process each; there are " +
                                  std::to_string(group.size) + " processes");
    }
    std::vector<int> devices(static_cast<std::size_t>(ranks), kElsewhere);
    devices[static_cast<std::size_t>(group.rank)] = group.rank_on_host;
    return devices;
  }
  const int present = cuda::device_count();
  const int usable = options.gpus > 0 ? std::min(options.gpus, present) : present;
  if (options.gpus > present || ranks > usable) {
    throw std::invalid_argument(
        "the plan needs " + counted(ranks, "GPU") + ", one for each rank; this host has " +
        counted(present, "GPU") +
        (options.gpus > 0 ? ", and --gpus says " + std::to_string(options.gpus) : std::string()));
  }
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

// That a KV block holds on all context-parallel ranks together.
std::int32_t tokens_of_block(const Deployment& deployment) {
  return static_cast<std::int32_t>(deployment.engine.block_size) * deployment.mesh.cp;
}

// Cases that one executor runs.
struct CaseGroup {
  std::vector<StepCase> cases;
  bool has_layers = false;  // by themselves, else steps
};

// Layers first: their executor is soon there again for their traces, which come last.
std::vector<CaseGroup> grouped(std::vector<StepCase> cases) {
  CaseGroup layers{.has_layers = true};
  CaseGroup steps;
  for (StepCase& one : cases) {
    (one.step.layers ? layers : steps).cases.push_back(std::move(one));
  }
  std::vector<CaseGroup> groups;
  if (!layers.cases.empty()) groups.push_back(std::move(layers));
  if (!steps.cases.empty()) groups.push_back(std::move(steps));
  return groups;
}

ExecutorSetup setup_of_steps(const Deployment& deployment, std::span<const StepCase> cases,
                             const Options& options) {
  const auto block_size = static_cast<std::int32_t>(deployment.engine.block_size);
  const std::int32_t block_tokens = tokens_of_block(deployment);
  const Mesh& mesh = deployment.mesh;
  const StepLimits limits = limits_of(cases, block_tokens, mesh.dp, mesh.two_batch_overlap);
  const std::int64_t blocks = options.num_kv_blocks.value_or(deployment.num_kv_blocks);
  if (limits.kv_blocks > blocks) {
    throw std::invalid_argument("the largest step takes " + std::to_string(limits.kv_blocks) +
                                " KV blocks of " + std::to_string(block_tokens) +
                                " on a rank; there are " + std::to_string(blocks));
  }
  const RankGrid grid = rank_grid(deployment.mesh);
  const auto largest =
      std::ranges::max_element(cases, {}, [](const StepCase& one) { return num_tokens(one); });
  return {.plan = largest->plan,
          .grid = grid,
          .numbers = model_numbers(deployment, limits.context),
          .devices = devices_for(options, grid.size()),
          .seed = deployment.seed,
          .num_kv_blocks = blocks,
          .block_size = block_size,
          .kv_dtype = deployment.lowering.precision.kv_cache,
          .max_tokens = limits.rows,
          .max_sequences = limits.sequences,
          .max_model_len = limits.context};
}

ExecutorSetup setup_of(const Deployment& deployment, const CaseGroup& group,
                       const Options& options) {
  ExecutorSetup setup = group.has_layers
                            ? layers_setup(deployment, group.cases,
                                           devices_for(options, rank_grid(deployment.mesh).size()))
                            : setup_of_steps(deployment, group.cases, options);
  setup.only_nccl = options.only_nccl;
  setup.watch_limit = options.faults.limit;
  setup.fault = options.faults.fault;
  setup.processes = processes();
  return setup;
}

// Cached tokens that no prefill has computed: any finite values take the same time, but where
// experts are chosen. There those of a prompt, which are alike under random weights, would make
// sequences choose alike, so caches are filled again before each step.
void fill_caches(const Executor& executor, std::span<const int> devices, std::uint64_t seed) {
  std::map<int, cuda::Stream> streams;  // by rank: all fill at once
  for (const int rank : executor.ranks()) {
    const cuda::DeviceGuard guard(devices[static_cast<std::size_t>(rank)]);
    const cuda::Stream& stream = streams[rank];
    const KvPool& pool = executor.kv(rank);
    const auto bytes = static_cast<std::size_t>(pool.bytes());
    if (pool.shape().dtype == DType::kFp8) {
      fill_normal(stream, reinterpret_cast<fp8*>(pool.data()), bytes, seed + rank);
    } else {
      fill_normal(stream, reinterpret_cast<bf16*>(pool.data()), bytes / sizeof(bf16), seed + rank);
    }
  }
  for (const auto& [rank, stream] : streams) {
    const cuda::DeviceGuard guard(devices[static_cast<std::size_t>(rank)]);
    stream.synchronize();
  }
}

void add_memory(ExecutedFiles& files, const Executor& executor) {
  for (const auto& [rank, memory] : executor.memory()) {
    for (const auto& [term, bytes] : memory_terms(memory)) {
      files.add_memory(rank, term, bytes);
    }
  }
}

// Time during which kernels or communication run on the rank where that is longest. Launches may
// start before the one ahead has ended and wait for it, so their durations do not add up.
Seconds busiest_rank(const Timeline& timeline) {
  std::map<int, Seconds> busy;
  std::map<int, Seconds> reached;
  for (const Span& span : timeline.spans) {  // ordered by start
    Seconds& end = reached[span.rank];
    if (span.end > end) busy[span.rank] += span.end - std::max(span.start, end);
    end = std::max(end, span.end);
  }
  Seconds longest{0};
  for (const auto& [rank, time] : busy) longest = std::max(longest, time);
  return longest;
}

// Steps to be traced must be among those that run.
void check_names(std::span<const std::string> names, std::span<const StepCase> cases) {
  std::vector<std::string_view> known;
  for (const StepCase& one : cases) known.emplace_back(one.name);
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw std::invalid_argument("--trace-only: no step '" + name + "', nearest is '" +
                                nearest(name, known) + "'");
  }
}

// Results are written by one process; those of the others go where nobody looks.
fs::path results_directory(const Options& options) {
  const int rank = processes().rank;
  if (rank == 0) return options.directory / "executed";
  return fs::temp_directory_path() / ("orrery-rank-" + std::to_string(rank));
}

// Whichever process fails first says so; the others are then told to stop.
void write_failure(const fs::path& directory, const std::string& status) {
  const fs::path file = directory / "executed" / "status.txt";
  if (processes().size > 1) {
    std::string found;
    std::getline(std::ifstream(file), found);
    if (found.starts_with("failed")) return;
  }
  std::ofstream(file) << status << "\n";
}

class StepRunner {
 public:
  StepRunner(const Options& options, const Deployment& deployment, std::vector<StepCase> cases)
      : options_(options),
        deployment_(deployment),
        groups_(grouped(std::move(cases))),
        files_(results_directory(options)),
        watch_(run_watch_setup(options.faults, [this](const std::string& status) {
          write_failure(options_.directory, status);
        })) {
    if (!options_.traces) return;
    const std::string problem = kernel_trace_problem();
    if (problem.empty()) return;
    std::fprintf(stderr, "no spans: %s\n", problem.c_str());
    options_.traces = false;
  }

  // The exit code; an error is in status.txt, beside what was measured before it.
  int run() {
    const InterruptGuard interrupts;
    try {
      run_all();
    } catch (const std::exception& error) {
      executor_.reset();  // before the last word
      write_failure(options_.directory, failure_status(error));
      throw;
    }
    return 0;
  }

 private:
  void run_all() {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      start(groups_[i]);
      if (i == 0) {
        std::printf("%-34s %5s %12s %8s %12s\n", "step", "runs", "median_us", "spread",
                    "device_us");
      }
      for_each_case("", groups_[i], [&](const StepCase& one) { time_case(one); });
      // Graphs and workspace are there now, and recording takes memory of its own.
      if (groups_[i].has_layers) continue;
      in_phase(RunPhase::kResults, [&] { add_memory(files_, *executor_); });
    }
    // Again: clocks are those under load.
    in_phase(RunPhase::kResults, [&] { write_environment(); });
    trace_all();
    in_phase(RunPhase::kTeardown, [&] { executor_.reset(); });
    in_phase(RunPhase::kResults, [&] {
      write_line_counts(results_directory(options_));
      files_.write_status("complete");
    });
  }

  // All times come before the first trace: recording slows every launch from then on.
  void trace_all() {
    for (CaseGroup& group : groups_) {
      std::erase_if(group.cases, [&](const StepCase& one) { return !is_traced(one); });
    }
    bool is_first = true;
    for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
      if (group->cases.empty()) continue;
      start(*group);
      if (std::exchange(is_first, false)) std::printf("\n%-34s %12s\n", "step", "busy_us");
      for_each_case("tracing ", *group, [&](const StepCase& one) { trace_case(one); });
    }
  }

  void write_environment() {
    std::map<std::string, std::string> facts = environment(static_cast<int>(devices_.size()));
    if (options_.late.are_late()) facts["late"] = to_text(options_.late);
    files_.write_environment(facts);
  }

  // The executor of the group, where it does not run yet.
  void start(const CaseGroup& group) {
    if (running_ == &group) return;
    // The run goes on behind it: that it came so far is not said.
    if (executor_) watch_.run(RunPhase::kTeardown, [&] { executor_.reset(); });
    running_ = &group;
    ExecutorSetup setup = setup_of(deployment_, group, options_);
    devices_ = setup.devices;
    setup.last_words = [this](const std::string& status) {
      write_failure(options_.directory, status);
      std::fprintf(stderr, "orrery-gpu: %s\n", status.c_str());
    };
    setup.phase_begun = [this](RunPhase phase) {
      if (phase != RunPhase::kTeardown) unfinished_.begun(phase);
    };
    if (group.has_layers && options_.late.are_late()) {
      setup.delay_before = [this](int rank, const std::string& op) {
        const auto found = delays_.before.find({rank, op});
        return found == delays_.before.end() ? Seconds(0) : found->second;
      };
    }
    num_kv_blocks_ = setup.num_kv_blocks;
    write_environment();
    std::fprintf(stderr, "%s: %s on %s, filling weights and caches\n", options_.directory.c_str(),
                 counted(std::ssize(group.cases), group.has_layers ? "layer" : "step").c_str(),
                 counted(std::ssize(devices_), "GPU").c_str());
    executor_ = std::make_unique<Executor>(std::move(setup));
  }

  template <typename Work>
  void in_phase(RunPhase phase, const Work& work) {
    unfinished_.begun(phase);
    watch_.run(phase, work);
  }

  template <typename Run>
  void for_each_case(const char* what, const CaseGroup& group, Run&& run) {
    for (std::size_t i = 0; i < group.cases.size(); ++i) {
      const StepCase& one = group.cases[i];
      std::fprintf(stderr, "%s%zu of %zu: %s\n", what, i + 1, group.cases.size(), one.name.c_str());
      throw_if_interrupted();
      run(one);
      std::fflush(stdout);
    }
  }

  // None of layers, which are given theirs.
  [[nodiscard]] StepInput input_of(const StepCase& one) const {
    if (one.step.layers) return {};
    const std::int64_t vocab = model_config(deployment_.name, deployment_.config).vocab_size;
    const Mesh& mesh = deployment_.mesh;
    const StepInput input =
        draw_input(one.step.batch, vocab, num_kv_blocks_, tokens_of_block(deployment_),
                   deployment_.seed, ranks_dealt_to(one.plan, mesh.dp, mesh.two_batch_overlap));
    const bool is_halved = mesh.two_batch_overlap && num_micro_batches(one.plan) > 1;
    return is_halved ? in_halves(input, mesh.dp) : input;
  }

  [[nodiscard]] std::unique_ptr<PreparedStep> prepared(const StepCase& one,
                                                       const StepInput& input) {
    const int layers = num_layers(one);
    if (layers == 0) fill_caches(*executor_, devices_, deployment_.seed);
    if (layers > 0) delays_ = layer_delays(options_.late, one.plan, layers, deployment_.seed);
    auto step = executor_->prepare(one.plan, input, one.step.mode);
    if (layers > 0) give_inputs(*step, one);
    for (int i = 0; i < kWarmUps; ++i) executor_->run(*step, input);
    return step;
  }

  void give_inputs(PreparedStep& step, const StepCase& one) {
    const RankGrid grid = rank_grid(deployment_.mesh);
    for (const int rank : executor_->ranks()) {
      for (const auto& [name, values] :
           layer_inputs(one.plan, grid, rank, num_tokens(one), deployment_.seed)) {
        executor_->give(step, rank, name, values);
      }
    }
  }

  void time_case(const StepCase& one) {
    const StepInput input = input_of(one);
    const std::unique_ptr<PreparedStep> step = prepared(one, input);
    if (options_.checks_finite) executor_->check_finite(*step, input);
    std::vector<double> durations;
    std::vector<double> devices;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < options_.repeats; ++i) {
      const std::chrono::duration<double> spent = Clock::now() - start;
      if (i >= kLeastRepeats && spent.count() > options_.step_limit.value()) break;
      const StepOutput output = executor_->run(*step, input);
      files_.add_step(one.name, to_text(one.step.mode), i, output.duration, output.device);
      if (i == 0 && !one.step.layers) files_.add_tokens(one.name, output.next_tokens);
      durations.push_back(output.duration.value());
      devices.push_back(output.device.value());
    }
    write_experts(*step, input, one.name);
    const Spread duration = spread_of(durations);
    if (one.step.mode == LaunchMode::kEager) {
      const int runs = duration.median < kShort ? kLaunchRuns : 1;
      write_launches(one.name, executor_->launch_times(*step, input, runs));
    }
    const double micro = 1e6 / std::max(num_layers(one), 1);  // of a layer
    std::printf("%-34s %5zu %12.2f %7.2f%% %12.2f\n", one.name.c_str(), durations.size(),
                duration.median * micro, duration.relative * 100,
                spread_of(devices).median * micro);
  }

  // Ranks of a tensor-parallel group route the same tokens: of those that count the same experts
  // the first does.
  void write_experts(PreparedStep& step, const StepInput& input, const std::string& name) {
    const RankGrid grid = rank_grid(deployment_.mesh);
    const std::vector<ExpertCounts> all = executor_->expert_counts(step, input);
    for (const ExpertCounts& one : all) {
      const bool is_known = std::ranges::any_of(all, [&](const ExpertCounts& other) {
        return other.rank < one.rank && grid.dp_rank(other.rank) == grid.dp_rank(one.rank) &&
               other.first_expert == one.first_expert && other.op == one.op &&
               other.copy == one.copy;
      });
      if (is_known) continue;
      files_.add_experts(name, one.op, one.copy, one.rank, one.first_expert, one.rows);
    }
  }

  void write_launches(const std::string& name, const std::vector<LaunchTime>& launches) {
    for (const LaunchTime& one : launches) {
      files_.add_launches(name, one.op, one.rank, one.launches, one.mean, one.median);
    }
  }

  void trace_case(const StepCase& one) {
    const StepInput input = input_of(one);
    const std::unique_ptr<PreparedStep> step = prepared(one, input);
    const StepTrace trace = executor_->trace(*step, input);
    files_.write_spans(one.name, trace.timeline);
    files_.write_kernels(one.name, trace);
    const double micro = 1e6 / std::max(num_layers(one), 1);
    std::printf("%-34s %12.2f\n", one.name.c_str(), busiest_rank(trace.timeline).value() * micro);
  }

  // A step that is one kernel has no spans of ops.
  [[nodiscard]] bool is_traced(const StepCase& one) const {
    return options_.traces && one.step.mode != LaunchMode::kMegakernel &&
           (options_.traced.empty() ||
            std::ranges::find(options_.traced, one.name) != options_.traced.end());
  }

  Options options_;
  const Deployment& deployment_;
  std::vector<CaseGroup> groups_;
  ExecutedFiles files_;
  std::int64_t num_kv_blocks_ = 0;
  std::vector<int> devices_;  // by rank
  LayerDelays delays_;        // of the layers that run
  UnfinishedStatus unfinished_{[this](const std::string& status) {
    if (processes().rank == 0) files_.write_status(status);
  }};
  RunWatch watch_;                      // it uses the above
  const CaseGroup* running_ = nullptr;  // whose executor this is:
  std::unique_ptr<Executor> executor_;
};

}  // namespace

int execute(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  set_execute_environment();
  RunWatch watch(run_watch_setup(options.faults));
  // MPI starts before anything else does.
  watch.run(RunPhase::kStart, [] { static_cast<void>(processes()); });
  const Deployment deployment = read_deployment(options.directory / "deployment.txt");
  std::vector<StepCase> cases = read_step_cases(options.directory, options.only);
  check_names(options.traced, cases);
  // The largest first, so that activations are allocated once.
  std::ranges::stable_sort(cases, std::greater<>(),
                           [](const StepCase& one) { return num_tokens(one); });
  check_late(options.late,
             std::ranges::count_if(cases, [](const StepCase& one) { return num_layers(one) > 0; }),
             num_ranks(deployment.mesh));
  if (processes().rank != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
    throw std::runtime_error("/dev/null cannot be opened");
  }
  watch.run(RunPhase::kStart, require_gpu);
  return StepRunner(options, deployment, std::move(cases)).run();
}

}  // namespace orrery::tool
