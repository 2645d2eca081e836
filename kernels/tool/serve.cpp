// orrery-gpu serve: replays the workload of a directory against the GPUs here, in real time, and
// writes the times of requests and steps to DIR/executed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/memory.h"
#include "kernels/execute/executed_files.h"
#include "kernels/execute/interrupt.h"
#include "kernels/execute/rank_error.h"
#include "kernels/execute/run_watch.h"
#include "kernels/serve/executed_steps.h"
#include "kernels/serve/executor_runner.h"
#include "kernels/serve/kv_mover.h"
#include "kernels/serve/live.h"
#include "kernels/serve/serve_directory.h"
#include "kernels/serve/watched_mover.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/environment.h"
#include "kernels/tool/executor_setup.h"
#include "kernels/tool/processes.h"
#include "kernels/tool/run_faults.h"
#include "kernels/tool/serve_output.h"
#include "sim/parallel/kv_flows.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/kv_tiers.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  fs::path directory;
  std::optional<std::int64_t> gpus;           // all that are there
  std::optional<std::int64_t> num_kv_blocks;  // per rank, in place of the deployment's
  std::optional<std::int64_t> requests;       // the first of the workload
  std::optional<std::int64_t> verify;  // the first N requests, one at a time, on one instance
  bool only_nccl = false;
  MoveBy move_by = MoveBy::kSm;  // KV caches, where prefill and decode are apart
  bool writes_tokens = false;
  FaultOptions faults;
};

MoveBy move_by(const Value& value) {
  if (value.text == "engine") return MoveBy::kCopyEngine;
  if (value.text == "sm") return MoveBy::kSm;
  throw std::invalid_argument(std::string(value.name) + ": found '" + std::string(value.text) +
                              "'; expected engine or sm");
}

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  std::vector<Option> known = {
      {"--gpus", [&](const Value& value) { options.gpus = value.whole(1); }},
      {"--num-kv-blocks", [&](const Value& value) { options.num_kv_blocks = value.whole(1); }},
      {"--requests", [&](const Value& value) { options.requests = value.whole(1); }},
      {"--verify", [&](const Value& value) { options.verify = value.whole(1); }},
      {"--move-by", [&](const Value& value) { options.move_by = move_by(value); }},
      {"--only-nccl", [&] { options.only_nccl = true; }},
      {"--tokens", [&] { options.writes_tokens = true; }}};
  for (Option& option : fault_options(options.faults)) known.push_back(std::move(option));
  options.directory = read_arguments("serve", arguments, known, kPreparedDirectory);
  return options;
}

ServeCase read(const Options& options) {
  ServeCase serve = read_serve_case(options.directory);
  if (options.num_kv_blocks) serve.deployment.num_kv_blocks = *options.num_kv_blocks;
  const auto limit = static_cast<std::size_t>(options.requests.value_or(INT64_MAX));
  if (limit < serve.workload.requests.size()) serve.workload.requests.resize(limit);
  return serve;
}

// Sizes of decode graphs that the scheduler can use: up to the first that holds all sequences.
std::vector<std::int64_t> used_graphs(const Deployment& deployment) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : deployment.graph_batch_sizes) {
    if (!sizes.empty() && sizes.back() >= deployment.engine.max_num_seqs) break;
    sizes.push_back(size);
  }
  return sizes;
}

// The tier of a replica, if there is one that its prompts can use.
std::optional<HostTierConfig> host_tier(const ServeCase& serve) {
  if (serve.kv_tiers.tiers.empty()) return std::nullopt;
  const EngineConfig& engine = serve.deployment.engine;
  if (!caches_prefixes(engine, serve.workload)) return std::nullopt;
  const std::int64_t blocks_per_unit = serve.workload.hash_block_tokens / engine.block_size;
  return HostTierConfig{
      .num_slots = tier_units(serve.kv_tiers, serve.kv_tiers.tiers.front(), blocks_per_unit, 1),
      .blocks_per_unit = blocks_per_unit,
      .overlap = serve.kv_tiers.overlap};
}

// Of one replica on `devices`.
ExecutorRunnerSetup runner_setup(const ServeCase& serve, const Options& options,
                                 std::vector<int> devices) {
  const Deployment& deployment = serve.deployment;
  const EngineConfig& engine = deployment.engine;
  const std::vector<std::int64_t> graphs = used_graphs(deployment);
  const std::int64_t most_rows = graphs.empty() ? 0 : graphs.back();
  const std::int64_t longest = longest_request(serve.workload);
  // Prompts of one data-parallel rank beside decodes of another.
  const std::int64_t mixed_rows =
      engine.max_num_batched_tokens + (deployment.mesh.dp > 1 ? engine.max_num_seqs : 0);
  return {.model = model_config(deployment.name, deployment.config),
          .mesh = deployment.mesh,
          .lowering = deployment.lowering,
          .executor = {.grid = rank_grid(deployment.mesh),
                       .numbers = model_numbers(deployment, longest),
                       .devices = std::move(devices),
                       .seed = deployment.seed,
                       .num_kv_blocks = deployment.num_kv_blocks,
                       .block_size = static_cast<std::int32_t>(engine.block_size),
                       .kv_dtype = deployment.lowering.precision.kv_cache,
                       .max_tokens = std::max(mixed_rows, most_rows),
                       .max_sequences = std::max(engine.max_num_seqs, most_rows),
                       .max_model_len = longest,
                       .only_nccl = options.only_nccl},
          .host_tier = host_tier(serve),
          .megakernel_rows = deployment.megakernel_batch_sizes,
          .graph_rows = graphs,
          .capture_context = mean_decode_context(serve.workload)};
}

// Prefill replicas first, then those of the deployment.
std::int64_t num_instances(const ServeCase& serve) {
  return serve.num_replicas + (serve.prefill ? serve.prefill->num_replicas : 0);
}

std::int64_t num_gpus(const ServeCase& serve) {
  const auto of = [](const ServeCase& side) {
    return std::int64_t{rank_grid(side.deployment.mesh).size()} * side.num_replicas;
  };
  return of(serve) + (serve.prefill ? of(prefill_side(serve)) : 0);
}

// Throws std::invalid_argument when there are too few GPUs, and for FFNs on GPUs of their own.
void check_devices(const ServeCase& serve, const Options& options) {
  if (serve.deployment.mesh.ffn_instances > 0) {
    throw std::invalid_argument(
        "a service with FFNs on GPUs of their own is not executed, its steps by themselves are "
        "(orrery-gpu execute); expected ffn_instances 0");
  }
  const std::int64_t needed = num_gpus(serve);
  const std::int64_t present = cuda::device_count();
  const std::int64_t usable = options.gpus.value_or(present);
  if (usable <= present && needed <= usable) return;
  const auto side = [](const ServeCase& of, const char* name) {
    return counted(of.num_replicas, name) + " of " +
           counted(rank_grid(of.deployment.mesh).size(), "rank");
  };
  const std::string replicas = serve.prefill ? side(prefill_side(serve), "prefill replica") +
                                                   " and " + side(serve, "decode replica")
                                             : side(serve, "replica");
  throw std::invalid_argument(
      replicas + " need " + counted(needed, "GPU") + "; this host has " + counted(present, "GPU") +
      (options.gpus ? ", and --gpus says " + std::to_string(*options.gpus) : std::string()));
}

// Lines on stderr, at most two a second.
class ProgressLines {
 public:
  void operator()(std::int64_t done, std::int64_t total) {
    const Clock::time_point now = Clock::now();
    if (done < total && now - last_ < std::chrono::milliseconds(500)) return;
    last_ = now;
    std::fprintf(stderr, "served %lld of %lld requests\n", static_cast<long long>(done),
                 static_cast<long long>(total));
  }

 private:
  Clock::time_point last_;
};

class Server {
 public:
  Server(const Options& options, ServeCase serve)
      : options_(options),
        serve_(std::move(serve)),
        executed_(options.directory / "executed"),
        watch_(watch_setup()) {}

  // The exit code; whatever ended it early is in status.txt, beside what was done before.
  int run() {
    fs::create_directories(executed_);
    for (const char* old :
         {"requests.csv", "serve_steps.csv", "kv_tiers.csv", "status.txt", "lines.txt"}) {
      fs::remove(executed_ / old);
    }
    const InterruptGuard guard;
    try {
      warm_up();
      serve();
      in_phase(RunPhase::kTeardown, [&] { runners_.clear(); });
      in_phase(RunPhase::kResults, [&] {
        write_line_counts(executed_);
        write_status("complete");
      });
    } catch (const std::runtime_error& error) {
      write_status(failure_status(error));
      throw;
    }
    return 0;
  }

 private:
  void write_status(const std::string& status) const {
    write_text(executed_ / "status.txt", status + "\n");
  }

  [[nodiscard]] RunWatch::Setup watch_setup() const {
    return run_watch_setup(options_.faults,
                           [this](const std::string& status) { write_status(status); });
  }

  template <typename Work>
  void in_phase(RunPhase phase, const Work& work) {
    unfinished_.begun(phase);
    watch_.run(phase, work);
  }

  // What a replica's executor adds: its ranks are those from `first` on.
  void watch_ranks(ExecutorRunnerSetup& setup, int first) {
    ExecutorSetup& executor = setup.executor;
    setup.first_rank = first;
    executor.watch_limit = options_.faults.limit;
    executor.phase_begun = [this](RunPhase phase) { unfinished_.begun(phase); };
    executor.last_words = [last_words = watch_setup().last_words,
                           first](const std::string& status) {
      last_words(with_ranks_from(first, status));
    };
    const std::optional<Fault>& fault = options_.faults.fault;
    const int ranks = executor.grid.size();
    if (!fault || fault->rank < first || fault->rank >= first + ranks) return;
    executor.fault = fault;
    executor.fault->rank -= first;
  }

  void warm_up() {
    write_environment();
    if (serve_.prefill) make_runners(prefill_side(serve_), serve_.prefill->is_layerwise);
    make_runners(serve_);
  }

  // Behind those that are there, on the next GPUs.
  void make_runners(const ServeCase& side, bool announces_layers = false) {
    const int ranks = rank_grid(side.deployment.mesh).size();
    const std::vector<std::int64_t> graphs = used_graphs(side.deployment);
    for (int i = 0; i < side.num_replicas; ++i) {
      std::vector<int> devices(static_cast<std::size_t>(ranks));
      const int first = devices_.empty() ? 0 : devices_.back().back() + 1;
      std::iota(devices.begin(), devices.end(), first);
      const Clock::time_point begin = Clock::now();
      ExecutorRunnerSetup setup = runner_setup(side, options_, devices);
      setup.announces_layers = announces_layers;
      watch_ranks(setup, first);
      with_ranks_from(
          first, [&] { runners_.push_back(std::make_unique<ExecutorRunner>(std::move(setup))); });
      devices_.push_back(std::move(devices));
      const Clock::time_point filled = Clock::now();
      // The largest first: what they share is allocated once.
      for (auto size = graphs.rbegin(); size != graphs.rend(); ++size) {
        throw_if_interrupted();
        with_ranks_from(first, [&] { runners_.back()->capture(*size); });
      }
      const std::chrono::duration<double> filling = filled - begin;
      const std::chrono::duration<double> capturing = Clock::now() - filled;
      std::fprintf(stderr,
                   "replica %zu of %lld: %.1f s for weights and caches, %.1f s for %zu graphs\n",
                   runners_.size(), static_cast<long long>(num_instances(serve_)), filling.count(),
                   capturing.count(), graphs.size());
    }
  }

  void serve() {
    // Prompts' steps that are dropped have ended; cudaFree would wait for KV caches that move.
    const cuda::MemoryCache cache;
    ProgressLines progress;
    const std::function<bool()> is_stopped = [] { return interrupt_signal() != nullptr; };
    const LiveResult result = serve_.prefill
                                  ? serve_apart(serve_.workload, std::ref(progress), is_stopped)
                                  : serve_whole(serve_.workload, 0, std::ref(progress), is_stopped);
    in_phase(RunPhase::kResults, [&] {
      write_served(executed_, result.service);
      write_text(executed_ / "memory.csv", memory_csv(runners_));
      write_text(executed_ / "serve_host.csv", host_csv(runners_));
      if (options_.writes_tokens) write_text(executed_ / "tokens.txt", tokens_text(result.tokens));
      write_environment();  // again: clocks are those under load
    });
    print_served(result, static_cast<std::int64_t>(serve_.workload.requests.size()));
    throw_if_interrupted();  // before the errors of replicas that follow from it
    if (result.error) std::rethrow_exception(result.error);
    if (options_.verify) verify(result.tokens);
  }

  [[nodiscard]] ExecutedStepsConfig steps_config(const ServeCase& side) const {
    return {.num_kv_blocks = side.deployment.num_kv_blocks,
            .num_dp_ranks = side.deployment.mesh.dp,
            .block_size = side.deployment.engine.block_size * side.deployment.mesh.cp,
            .graph_batch_sizes = used_graphs(side.deployment),
            .vocab_size = model_config(side.deployment.name, side.deployment.config).vocab_size,
            .seed = side.deployment.seed,
            .hash_block_tokens = side.workload.hash_block_tokens,
            .caches_prefixes = caches_prefixes(side.deployment.engine, side.workload)};
  }

  // On the runners from `first` on.
  [[nodiscard]] LiveSide live_side(const ServeCase& side, std::size_t first) const {
    LiveSide live{.service = service_config(side), .steps = steps_config(side)};
    for (int i = 0; i < side.num_replicas; ++i) live.runners.push_back(runners_[first++].get());
    return live;
  }

  LiveResult serve_whole(const Workload& workload, std::size_t first, const Progress& progress,
                         const std::function<bool()>& is_stopped) {
    LiveClock clock;
    return serve_live(workload, {.first = live_side(serve_, first)}, {}, clock, progress,
                      is_stopped);
  }

  // Each data-parallel rank of the replicas of a side, whose runners are those from `first` on.
  [[nodiscard]] std::vector<MovedInstance> instances(const ServeCase& side,
                                                     std::size_t first) const {
    const RankGrid grid = rank_grid(side.deployment.mesh);
    std::vector<MovedInstance> all;
    for (int i = 0; i < side.num_replicas; ++i, ++first) {
      const ExecutorRunner& runner = *runners_[first];
      for (int dp_rank = 0; dp_rank < grid.dp; ++dp_rank) {
        MovedInstance& instance = all.emplace_back();
        instance.layers = runner.layer_events();
        for (int rank = 0; rank < grid.size(); ++rank) {
          if (grid.dp_rank(rank) != dp_rank) continue;
          instance.gpus.push_back({.pool = &runner.executor().kv(rank),
                                   .device = devices_[first][static_cast<std::size_t>(rank)],
                                   .rank = rank});
        }
      }
    }
    return all;
  }

  // With `checks` every KV cache that moved is compared.
  LiveResult serve_apart(const Workload& workload, const Progress& progress,
                         const std::function<bool()>& is_stopped, bool checks = false) {
    const ServeCase prefill = prefill_side(serve_);
    const auto num_prefill = static_cast<std::size_t>(prefill.num_replicas);
    LiveSetup setup{.first = live_side(prefill, 0),
                    .decode = live_side(serve_, num_prefill),
                    .moves_layers = serve_.prefill->is_layerwise};
    std::vector<MovedInstance> from = instances(prefill, 0);
    std::vector<MovedInstance> to = instances(serve_, num_prefill);
    std::vector<int> first_gpus;
    first_gpus.reserve(from.size());
    for (const MovedInstance& rank : from) first_gpus.push_back(rank.gpus.front().device);
    const auto num_decode = static_cast<int>(to.size());
    GpuKvMover mover(std::move(from), std::move(to),
                     kv_parts(model_config(serve_.deployment.name, serve_.deployment.config),
                              prefill.deployment.mesh, serve_.deployment.mesh),
                     options_.move_by);
    setup.kv_block = mover.block_bytes();
    CheckedKvMover checked(mover);
    WatchedKvMover watched(checks ? static_cast<KvMover&>(checked) : mover, first_gpus, num_decode,
                           watch_setup());
    setup.mover = &watched;
    LiveClock clock;
    return serve_live(workload, setup, {}, clock, progress, is_stopped);
  }

  // That KV caches arrive as they were. All at once: every byte that moved, while both sides
  // compute. One at a time: the tokens are those of one instance, which then runs the same steps,
  // unless the sides split the model unlike, so that sums are rounded otherwise. `served`: the
  // tokens under load, where batches and so roundings are others.
  void verify(const Tokens& served) {
    Workload some = serve_.workload;
    some.requests.resize(
        std::min(some.requests.size(), static_cast<std::size_t>(*options_.verify)));
    some.warmup_requests = 0;
    some.closed_loop_concurrency = static_cast<std::int64_t>(some.requests.size());
    const LiveResult moved = serve_apart(some, {}, {}, true);
    if (moved.error) std::rethrow_exception(moved.error);
    Workload alone = some;
    alone.closed_loop_concurrency = 1;
    const Tokens apart = serve_apart(alone, {}, {}).tokens;
    const auto num_prefill = static_cast<std::size_t>(serve_.prefill->num_replicas);
    const LiveResult result = serve_whole(alone, num_prefill, {}, {});
    if (result.error) std::rethrow_exception(result.error);
    const Tokens& whole = result.tokens;
    std::size_t num_equal = 0;
    std::size_t num_equal_in_load = 0;
    std::size_t num_tokens = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      num_equal += apart[i] == whole[i] ? 1 : 0;
      num_equal_in_load += served[i] == whole[i] ? 1 : 0;
      num_tokens += static_cast<std::size_t>(alone.requests[i].output_tokens);
    }
    std::printf(
        "verify: %zu of %zu requests (%zu output tokens) alone as on one instance, %zu under "
        "load; all bytes of %lld KV caches right\n",
        num_equal, whole.size(), num_tokens, num_equal_in_load,
        static_cast<long long>(moved.service.metrics.disaggregation->num_transfers));
    const bool is_alike = serve_.prefill->deployment.mesh == serve_.deployment.mesh;
    if (is_alike && num_equal != whole.size()) {
      throw std::runtime_error(
          "tokens of requests that were handed over differ from those of one "
          "instance");
    }
  }

  void write_environment() const {
    std::string text;
    for (const auto& [key, value] : environment(static_cast<int>(num_gpus(serve_)))) {
      text.append(key).append(" ").append(value).append("\n");
    }
    write_text(executed_ / "environment.txt", text);
  }

  Options options_;
  ServeCase serve_;
  fs::path executed_;
  std::vector<std::unique_ptr<ExecutorRunner>> runners_;  // prefill replicas, then the others
  std::vector<std::vector<int>> devices_;                 // of each
  UnfinishedStatus unfinished_{[this](const std::string& status) { write_status(status); }};
  RunWatch watch_;  // last: it uses the above
};

}  // namespace

int serve(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  if (processes().size > 1) throw std::invalid_argument("serve runs in one process");
  ServeCase serve = read(options);
  // Before minutes are spent on weights.
  if (serve.prefill) {
    check_disaggregated(serve.workload, service_config(prefill_side(serve)), service_config(serve));
  } else {
    if (options.verify) {
      throw std::invalid_argument(
          "--verify compares prefill and decode apart with one instance; "
          "serve.txt has no prefill replicas");
    }
    static_cast<void>(checked_config(service_config(serve), serve.workload));
  }
  set_execute_environment();
  RunWatch(run_watch_setup(options.faults)).run(RunPhase::kStart, require_gpu);
  check_devices(serve, options);
  return Server(options, std::move(serve)).run();
}

}  // namespace orrery::tool
