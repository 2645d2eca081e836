#include "kernels/serve/executor_runner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/devices.h"
#include "kernels/dense/gemm/cublas_lt.h"
#include "kernels/execute/even_graphs.h"
#include "kernels/execute/rank_error.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/halves.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

// Prepared steps that are kept besides graphs.
constexpr std::size_t kMostEager = 64;

Seconds since(Clock::time_point begin) {
  return Seconds(std::chrono::duration<double>(Clock::now() - begin).count());
}

ExecutorRunnerSetup checked(ExecutorRunnerSetup setup) {
  if (setup.mesh.num_micro_batches > 1) {
    throw std::invalid_argument("steps of " + std::to_string(setup.mesh.num_micro_batches) +
                                " micro-batches are not served on GPUs, expected 1");
  }
  if (setup.host_tier && (setup.mesh.dp > 1 || setup.mesh.pp > 1)) {
    throw std::invalid_argument(
        "a tier of host memory behind the KV blocks of dp " + std::to_string(setup.mesh.dp) +
        ", pp " + std::to_string(setup.mesh.pp) + " is not executed; expected 1 of both");
  }
  if (setup.announces_layers && (setup.mesh.two_batch_overlap || setup.host_tier)) {
    throw std::invalid_argument(
        "layers of KV caches move while two batches overlap, or behind a tier of host memory, "
        "which "
        "is not executed; expected neither beside transfer layerwise");
  }
  return setup;
}

DealtInput dealt_input(const ExecutorRunnerSetup& setup, const StepInput& input) {
  return {input, setup.mesh.dp, setup.mesh.two_batch_overlap};
}

bool has_even_rows(const ExecutorRunnerSetup& setup) {
  return setup.mesh.dp_rows == DpRows::kBalanced;
}
// Tokens of which ranks have even parts in an eager step; 0: they have their own rows alone.
std::int64_t even_tokens(const ExecutorRunnerSetup& setup, const DealtInput& dealt) {
  return has_even_rows(setup) ? num_tokens(batch_of(dealt.whole())) : 0;
}

Plan plan_of(const ExecutorRunnerSetup& setup, const DealtInput& dealt, std::int64_t even) {
  Mesh mesh = setup.mesh;
  const Batch batch = dealt.fullest();
  if (dealt.is_halved()) mesh.num_micro_batches = kNumHalves;
  if (mesh.dp == 1 && !dealt.is_halved()) {
    return parallelize(lower(setup.model, batch, setup.lowering), mesh);
  }
  return step_plan(setup.model, alike_shape(batch, mesh, even), setup.lowering, mesh);
}
Plan plan_of(const ExecutorRunnerSetup& setup, const StepInput& input) {
  const DealtInput dealt = dealt_input(setup, input);
  return plan_of(setup, dealt, even_tokens(setup, dealt));
}

// Of latent attention a plan gathers as many cached tokens for each rank.
std::int64_t cached_tokens(const Batch& batch) {
  std::int64_t tokens = 0;
  for (const PrefillChunk& chunk : batch.prefill) tokens += chunk.context;
  return tokens;
}

ExecutorSetup with_plans(const ExecutorRunnerSetup& setup, KvHook* kv_hook) {
  StepInput first;  // a token in each part
  const std::vector<std::int32_t> tokens(setup.mesh.two_batch_overlap ? kNumHalves : 1, 0);
  for (int rank = 0; rank < setup.mesh.dp; ++rank) {
    first.prefill.push_back({.tokens = tokens, .dp_rank = setup.mesh.dp > 1 ? rank : -1});
  }
  ExecutorSetup executor = setup.executor;
  executor.plan = plan_of(setup, first);
  executor.kv_hook = kv_hook;
  return executor;
}

// Of all ranks, each shape once.
std::vector<GemmShape> gemms_of(const Plan& plan) {
  std::set<GemmShape> shapes;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel != nullptr && kernel->kernel == "gemm") shapes.insert(gemm_shape(plan, op));
  }
  return {shapes.begin(), shapes.end()};
}

}  // namespace

ExecutorRunner::ExecutorRunner(ExecutorRunnerSetup setup)
    : setup_(checked(std::move(setup))),
      host_tier_(setup_.host_tier ? std::make_unique<HostTier>(*setup_.host_tier) : nullptr),
      layer_events_(setup_.announces_layers ? std::make_unique<LayerEvents>() : nullptr),
      executor_(with_plans(
          setup_, host_tier_ ? static_cast<KvHook*>(host_tier_.get()) : layer_events_.get())) {
  const ExecutorSetup& executor = setup_.executor;
  if (host_tier_) {
    std::vector<const KvPool*> pools;
    pools.reserve(static_cast<std::size_t>(executor_.num_ranks()));
    for (int rank = 0; rank < executor_.num_ranks(); ++rank) pools.push_back(&executor_.kv(rank));
    host_tier_->open(pools, executor.devices);
  }
  if (layer_events_) {
    std::vector<std::int64_t> layers;
    layers.reserve(executor.devices.size());
    for (int rank = 0; rank < executor_.num_ranks(); ++rank) {
      layers.push_back(executor_.kv(rank).shape().layers);
    }
    layer_events_->open(executor.devices, layers);
  }
  const std::int64_t decodes = std::min(executor.max_sequences, executor.max_tokens - 1);
  const StepInput fullest = any_input(executor.max_tokens - decodes, decodes);
  const std::vector<GemmShape> gemms = gemms_of(plan_of(setup_, fullest));
  for (const int device : executor.devices) {
    if (device == kElsewhere) continue;
    const cuda::DeviceGuard guard(device);
    prepare_gemms(gemms);
  }
  const auto run_once = [this](const StepInput& input) {
    const DealtInput dealt = dealt_input(setup_, input);
    executor_.run(eager(dealt), dealt.input());
  };
  run_once(fullest);
  for (std::int64_t tokens = executor.max_tokens; tokens > 0; tokens /= 2) {
    run_once(any_input(tokens, 0));
  }
}

// Before serving no request holds a block, so any will do, and be written by several.
std::vector<std::int32_t> ExecutorRunner::any_blocks(std::int64_t tokens,
                                                     std::int64_t index) const {
  const ExecutorSetup& executor = setup_.executor;
  const std::int64_t block = std::int64_t{executor.block_size} * setup_.mesh.cp;
  const std::int64_t count = (tokens + block - 1) / block;
  std::vector<std::int32_t> blocks;
  blocks.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    blocks.push_back(static_cast<std::int32_t>((index * count + i) % executor.num_kv_blocks));
  }
  return blocks;
}

StepInput ExecutorRunner::any_input(std::int64_t tokens, std::int64_t decodes,
                                    std::int64_t context) const {
  StepInput input;
  for (int rank = 0; rank < setup_.mesh.dp; ++rank) {
    const int dp_rank = setup_.mesh.dp > 1 ? rank : -1;
    std::int64_t chunks = 0;
    for (std::int64_t left = tokens; left > 0; ++chunks) {
      const std::int64_t query = std::min(left, setup_.executor.max_model_len);
      input.prefill.push_back(
          {.tokens = std::vector<std::int32_t>(static_cast<std::size_t>(query), 0),
           .blocks = any_blocks(query, chunks),
           .dp_rank = dp_rank});
      left -= query;
    }
    add_decodes(input, decodes, context, rank);
  }
  return input;
}

void ExecutorRunner::add_decodes(StepInput& input, std::int64_t count, std::int64_t context,
                                 int rank) const {
  for (std::int64_t i = 0; i < count; ++i) {
    input.decodes.push_back({.tokens = {0},
                             .context = context,
                             .blocks = any_blocks(context + 1, i),
                             .dp_rank = setup_.mesh.dp > 1 ? rank : -1});
  }
}

StepInput ExecutorRunner::any_decodes(std::span<const std::int64_t> ranks,
                                      std::int64_t context) const {
  StepInput input;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    add_decodes(input, ranks[rank], context, static_cast<int>(rank));
  }
  return input;
}

std::vector<ExecutorRunner::Rows> ExecutorRunner::graphs_of(std::int64_t rows) const {
  if (!has_even_rows(setup_)) return {{.decodes = rows}};
  std::vector<Rows> graphs;
  for (const std::int64_t even : even_graphs_of(setup_.graph_rows, rows, setup_.mesh.dp)) {
    graphs.push_back({.decodes = rows, .even = even});
  }
  return graphs;
}

void ExecutorRunner::capture(std::int64_t rows) {
  const std::int64_t context = std::min(setup_.capture_context, setup_.executor.max_model_len);
  const int dp = setup_.mesh.dp;
  const std::vector<std::int64_t>& of_one_kernel = setup_.megakernel_rows;
  const bool is_one_kernel = std::ranges::find(of_one_kernel, rows) != of_one_kernel.end();
  const LaunchMode mode = is_one_kernel ? LaunchMode::kMegakernel : LaunchMode::kGraph;
  std::vector<Rows> graphs = graphs_of(rows);
  std::ranges::reverse(graphs);  // the largest first
  for (const Rows& of : graphs) {
    const std::vector<std::int64_t> decodes =
        of.even > 0 ? decodes_of_graph(rows, of.even, dp)
                    : std::vector<std::int64_t>(static_cast<std::size_t>(dp), rows);
    const StepInput whole = any_decodes(decodes, context - 1);
    const DealtInput dealt = dealt_input(setup_, whole);
    std::unique_ptr<PreparedStep>& graph = graphs_[of];
    graph =
        executor_.prepare(plan_of(setup_, dealt, even_tokens(setup_, dealt)), dealt.input(), mode);
    executor_.run(*graph, dealt.input());
  }
}

PreparedStep& ExecutorRunner::eager(const DealtInput& dealt) {
  const Batch batch = dealt.fullest();
  const Rows rows{.prefill = num_tokens(batch) - batch.num_decodes,
                  .sampled = num_sampled(batch),
                  .decodes = batch.num_decodes,
                  .is_halved = dealt.is_halved(),
                  .expanded = setup_.model.kv_lora_rank > 0 ? cached_tokens(batch) : 0,
                  .even = even_tokens(setup_, dealt)};
  Prepared& prepared = eager_[rows];
  prepared.last_use = ++num_runs_;
  if (prepared.step) return *prepared.step;
  prepared.step =
      executor_.prepare(plan_of(setup_, dealt, rows.even), dealt.input(), LaunchMode::kEager);
  if (eager_.size() > kMostEager) {
    eager_.erase(std::ranges::min_element(eager_, {},
                                          [](const auto& entry) { return entry.second.last_use; }));
  }
  return *prepared.step;
}

std::vector<std::int32_t> ExecutorRunner::run_timed(PreparedStep& step, const DealtInput& dealt,
                                                    RunTimes times) {
  const Clock::time_point begin = Clock::now();
  StepOutput output = executor_.run(step, dealt.input());
  times.run = since(begin);
  times.duration = output.duration;
  times.device = output.device;
  times.waited = waited();
  if (setup_.mesh.dp > 1) times.balance = balance(dealt.whole(), setup_.mesh.dp);
  times_.push_back(times);
  return std::move(output.next_tokens);
}

Seconds ExecutorRunner::waited() const { return host_tier_ ? host_tier_->waited() : Seconds(0); }

std::vector<std::int32_t> ExecutorRunner::run(const StepInput& input, std::int64_t graph_rows,
                                              const KvMoves& moves) {
  if (host_tier_) host_tier_->set(moves);
  std::optional<LayerEvents::Step> step;
  if (layer_events_) step.emplace(*layer_events_);
  return with_ranks_from(setup_.first_rank, [&] { return run_step(input, graph_rows); });
}

std::vector<std::int32_t> ExecutorRunner::run_step(const StepInput& input,
                                                   std::int64_t graph_rows) {
  executor_.end_warm_up();  // graphs are captured
  const DealtInput dealt = dealt_input(setup_, input);
  if (graph_rows == 0) {
    const Clock::time_point begin = Clock::now();
    PreparedStep& step = eager(dealt);
    return run_timed(step, dealt, {.prepare = since(begin)});
  }
  Rows rows{.decodes = graph_rows};
  if (has_even_rows(setup_)) {
    rows.even = even_graph_rows(setup_.graph_rows, std::ssize(input.decodes), setup_.mesh.dp);
  }
  const auto graph = graphs_.find(rows);
  if (graph == graphs_.end()) {
    throw std::invalid_argument("a graph of " + std::to_string(graph_rows) +
                                " rows was not captured");
  }
  return run_timed(*graph->second, dealt, {.graph_rows = graph_rows});
}

}  // namespace orrery
