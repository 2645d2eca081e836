#include "sim/serve/step_skeletons.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>

#include "sim/model/lowering.h"
#include "sim/serve/leap_time.h"

namespace orrery {
namespace {

constexpr int kTokenBits = 7;
constexpr int kShapeBits = 8;   // of attention
constexpr int kSampleBits = 6;  // of LM head and sampling
constexpr int kDecodeBits = 4;  // beside prefill, shared by data-parallel ranks
// Rows of the smallest GEMM tile worth following: times jump at its multiples, so that no cell of
// token counts may reach over one.
constexpr std::int64_t kTileTokens = 128;

// Kernels priced anew for each batch; their dims batch, query and context describe it.
constexpr std::array<std::string_view, 6> kAttentionKernels = {
    "attention_prefill", "attention_decode",   "mla_prefill",
    "mla_decode",        "mla_prefill_module", "mla_decode_module"};

bool is_attention(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr &&
         std::ranges::find(kAttentionKernels, kernel->kernel) != kAttentionKernels.end();
}

bool is_decode_attention(const KernelOp& kernel) {
  return std::ranges::find(kernel.dims, "query", &Dim::name) == kernel.dims.end();
}

// Whether an op works on one row per sequence: all that it writes has the axis `seqs`.
bool is_per_sequence(const Plan& plan, const Op& op) {
  return !is_attention(op) && !op.writes.empty() &&
         std::ranges::all_of(op.writes, [&](TensorId id) {
           const auto& axes = plan.tensors()[static_cast<std::size_t>(id)].axes;
           return std::ranges::find(axes, axis::kSeqs, &Axis::name) != axes.end();
         });
}

Seconds& of_basis(BasisSeconds& sums, Basis basis) {
  return basis == Basis::kMeasured       ? sums.measured
         : basis == Basis::kInterpolated ? sums.interpolated
                                         : sums.roofline;
}

void set_dim(KernelOp& op, std::string_view name, std::int64_t size) {
  const auto found = std::ranges::find(op.dims, name, &Dim::name);
  if (found != op.dims.end()) found->size = size;
}

// Of an op with dim "batch".
Estimate between_powers_of_two(const CostModel& cost, KernelOp op) {
  const std::int64_t batch = dim(op.dims, "batch");
  const auto low = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(batch)));
  set_dim(op, "batch", low);
  Estimate estimate = cost.kernel(op);
  if (low == batch) return estimate;
  set_dim(op, "batch", 2 * low);
  const Estimate high = cost.kernel(op);
  const double share = static_cast<double>(batch - low) / static_cast<double>(low);
  estimate.time = estimate.time * (1 - share) + high.time * share;
  estimate.basis = std::max({estimate.basis, high.basis, Basis::kInterpolated});
  return estimate;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Of a plan without a closed form: kernels of two streams share the GPU, which the heap leaves out.
StepLevel level_of(const Plan& plan) {
  const auto is_beside = [](const Op& op) {
    return op.stream != 0 && std::holds_alternative<KernelOp>(op.body);
  };
  return std::ranges::any_of(plan.ops(), is_beside) ? StepLevel::kRepresentative : StepLevel::kHeap;
}

// One past the last op of the run of repeated ops that starts at `id`, or of the ops up to the next
// run.
OpId section_end_of(const Plan& plan, OpId id) {
  auto end = static_cast<OpId>(plan.ops().size());
  for (const Repeat& repeat : plan.repeats()) {
    if (repeat.first == id) return repeat.last;
    if (repeat.first > id) end = std::min(end, repeat.first);
  }
  return end;
}

}  // namespace

std::int64_t round_bits(std::int64_t value, int bits) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
  if (width <= bits) return value;
  const std::int64_t step = std::int64_t{1} << (width - bits);
  return (value + step / 2) / step * step;
}

TokenCell token_cell(std::int64_t tokens) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens - 1)));
  if (width <= kTokenBits) return {.first = tokens, .last = tokens};
  const std::int64_t step = std::min(std::int64_t{1} << (width - kTokenBits), kTileTokens);
  const std::int64_t below = (tokens - 1) / step * step;
  return {.first = below + 1, .last = below + step};
}

Plan step_plan(const StepSetup& setup, const Batch& batch) {
  return parallelize(lower(setup.model, batch, setup.lowering), setup.mesh);
}

DeviceTime step_time(const StepSetup& setup, const Batch& batch) {
  const Plan plan = step_plan(setup, batch);
  const PricedPlan priced = price(plan, *setup.cost);
  if (setup.level == StepLevel::kClosedForm && priced.is_chain) {
    return {.duration = closed_form(priced, *setup.cost), .basis = priced.basis};
  }
  const StepLevel level = setup.level == StepLevel::kClosedForm ? level_of(plan) : setup.level;
  const Timeline timeline =
      simulate(priced, *setup.machine, *setup.cost, {.level = level, .record_links = false});
  return {.duration = makespan(timeline), .basis = priced.basis};
}

StepSkeletons::StepSkeletons(StepSetup setup) : setup_(std::move(setup)) {
  if (setup_.level != StepLevel::kClosedForm || setup_.mesh.cp > 1 || setup_.model.index_topk > 0) {
    return;
  }
  const Plan plan =
      step_plan(setup_, {.num_decodes = setup_.mesh.dp, .decode_context = setup_.mesh.dp});
  const PricedPlan priced = price(plan, *setup_.cost);
  const bool has_host_ops = std::ranges::any_of(
      plan.ops(), [](const Op& op) { return std::holds_alternative<HostOp>(op.body); });
  apply_ = priced.is_chain && priced.chains.size() == 1 && !has_host_ops;
}

StepSkeletons::Skeleton StepSkeletons::make_skeleton(std::int64_t tokens,
                                                     const Content& content) const {
  // Attention is replaced, so how tokens are split matters for the shares of ranks only.
  Batch batch;
  batch.num_decodes = content.chunks == 0 ? tokens : std::min(content.decodes, tokens - 1);
  batch.decode_context = batch.num_decodes * 1024;
  const std::int64_t queries = tokens - batch.num_decodes;
  const std::int64_t chunks = std::min(content.chunks, queries);
  for (std::int64_t i = 0; i < chunks; ++i) {
    batch.prefill.push_back({.query = queries / chunks + (i < queries % chunks ? 1 : 0),
                             .context = 0,
                             .produces_token = batch.num_decodes == 0 && i == 0});
  }
  const Plan plan = step_plan(setup_, batch);
  const PricedPlan priced = price(plan, *setup_.cost);
  const CostOptions& options = setup_.cost->options();
  const bool is_graph = options.launch_mode == LaunchMode::kGraph;

  Skeleton skeleton;
  const int rank = plan.ranks(plan.ops().front().ranks).front();
  OpId section_end = 0;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    if (id >= section_end) {
      section_end = section_end_of(plan, id);
      const auto first = static_cast<std::int32_t>(skeleton.tasks.size());
      skeleton.sections.push_back({.first = first, .last = first, .count = plan.multiplicity(id)});
    }
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    if (!std::ranges::binary_search(plan.ranks(op.ranks), rank)) continue;
    const Estimate& estimate = priced.times[static_cast<std::size_t>(id)];
    const auto count = static_cast<double>(plan.multiplicity(id));
    // The closed form counts one gap before each graph node but the first.
    const Seconds gap = is_graph && id > 0 ? options.host.graph_node : Seconds(0);
    if (is_per_sequence(plan, op)) {
      skeleton.tail.times.push_back(gap + estimate.time);
      of_basis(skeleton.tail.basis, estimate.basis) += estimate.time;
      continue;
    }
    Task task{.time = gap + estimate.time};
    if (is_attention(op)) {
      const auto& kernel = std::get<KernelOp>(op.body);
      task = {.time = gap, .attention = static_cast<std::int32_t>(skeleton.attention.size())};
      skeleton.attention.push_back(
          {.op = kernel, .is_decode = is_decode_attention(kernel), .count = count});
    } else {
      of_basis(skeleton.basis, estimate.basis) += estimate.time * count;
    }
    skeleton.tasks.push_back(task);
    ++skeleton.sections.back().last;
  }
  return skeleton;
}

const StepSkeletons::Skeleton& StepSkeletons::skeleton(std::int64_t tokens,
                                                       const Content& content) {
  const std::pair key{tokens, content};
  {
    const std::shared_lock lock(mutex_);
    const auto found = skeletons_.find(key);
    if (found != skeletons_.end()) return found->second;
  }
  Skeleton made = make_skeleton(tokens, content);
  const std::unique_lock lock(mutex_);
  return skeletons_.try_emplace(key, std::move(made)).first->second;
}

const StepSkeletons::Tail& StepSkeletons::tail(std::int64_t num_sampled) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = tails_.find(num_sampled);
    if (found != tails_.end()) return found->second;
  }
  Tail made = make_skeleton(num_sampled, {.decodes = num_sampled}).tail;
  const std::unique_lock lock(mutex_);
  return tails_.try_emplace(num_sampled, std::move(made)).first->second;
}

std::vector<Seconds> StepSkeletons::attention_times(const Skeleton& skeleton, const Batch& batch,
                                                    double context, BasisSeconds& basis) const {
  StepShape prefill;
  if (!batch.prefill.empty()) prefill = step_shape({.prefill = batch.prefill});
  std::vector<Seconds> times;
  times.reserve(skeleton.attention.size());
  for (const Attention& attention : skeleton.attention) {
    KernelOp op = attention.op;
    if (attention.is_decode) {
      set_dim(op, "batch", ceil_div(batch.num_decodes, setup_.mesh.dp));
      set_dim(op, "context", std::llround(context));
    } else {
      set_dim(op, "batch", ceil_div(prefill.prefill_batch, setup_.mesh.dp));
      set_dim(op, "query", round_bits(prefill.prefill_query, kShapeBits));
      set_dim(op, "context", round_bits(prefill.prefill_context, kShapeBits));
    }
    const Estimate estimate = attention.is_decode && setup_.has_uneven_decodes
                                  ? between_powers_of_two(*setup_.cost, op)
                                  : setup_.cost->kernel(op);
    of_basis(basis, estimate.basis) += estimate.time * attention.count;
    times.push_back(estimate.time);
  }
  return times;
}

// With launch time e, task k (from 0) starts at max(end of k - 1, (k + 1) e). For the lag
// d = end - e (tasks so far), one copy of m tasks of T in all is d' = max(d + a, c): a = T - m e,
// and c is d' from d = -inf. n copies: max(d + n a, c + (n - 1) max(a, 0)).
Seconds StepSkeletons::end_of(const Skeleton& skeleton, std::span<const Seconds> attention,
                              std::span<const Seconds> tail, Seconds launch) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const double e = launch.value();
  double lag = 0;
  double num_tasks = 0;
  for (const Section& section : skeleton.sections) {
    double growth = 0;         // a
    double catch_up = kNever;  // c
    for (std::int32_t i = section.first; i < section.last; ++i) {
      const Task& task = skeleton.tasks[static_cast<std::size_t>(i)];
      double time = task.time.value();
      if (task.attention >= 0) time += attention[static_cast<std::size_t>(task.attention)].value();
      growth += time - e;
      catch_up = std::max(catch_up - e, 0.0) + time;
    }
    const auto count = static_cast<double>(section.count);
    lag = std::max(lag + count * growth, catch_up + (count - 1) * std::max(growth, 0.0));
    num_tasks += count * (section.last - section.first);
  }
  for (const Seconds time : tail) {
    lag = std::max(lag - e, 0.0) + time.value();
    num_tasks += 1;
  }
  return Seconds(lag + e * num_tasks);
}

DeviceTime StepSkeletons::time(const Batch& batch, std::int64_t padded_decodes, double context) {
  const bool has_prefill = !batch.prefill.empty();
  const bool is_shared = has_prefill && setup_.mesh.dp > 1;
  const Content content{
      .chunks = is_shared ? step_shape({.prefill = batch.prefill}).prefill_batch : has_prefill,
      .decodes = is_shared ? round_bits(batch.num_decodes, kDecodeBits) : batch.num_decodes > 0};
  std::int64_t tokens = padded_decodes;
  std::int64_t num_sampled = padded_decodes;
  for (const PrefillChunk& chunk : batch.prefill) {
    tokens += chunk.query;
    num_sampled += chunk.produces_token ? 1 : 0;
  }
  // Decode batches have captured sizes, few enough to keep each.
  const TokenCell cell =
      has_prefill ? token_cell(tokens) : TokenCell{.first = tokens, .last = tokens};
  const Skeleton& base = skeleton(cell.first, content);
  const Skeleton& last = skeleton(cell.last, content);
  const double share = cell.first == cell.last ? 0
                                               : static_cast<double>(tokens - cell.first) /
                                                     static_cast<double>(cell.last - cell.first);
  const CostOptions& options = setup_.cost->options();
  const Seconds launch =
      options.launch_mode == LaunchMode::kEager ? options.host.eager_launch : Seconds(0);
  DeviceTime result{.basis = mix(base.basis, last.basis, share)};
  const std::vector<Seconds> attention = attention_times(base, batch, context, result.basis);
  std::span<const Seconds> tail_times;
  if (num_sampled > 0) {
    const Tail& end = tail(round_bits(num_sampled, kSampleBits));
    tail_times = end.times;
    result.basis = sum(result.basis, end.basis);
  }
  result.duration = end_of(base, attention, tail_times, launch);
  if (share > 0) {
    result.duration =
        result.duration * (1 - share) + end_of(last, attention, tail_times, launch) * share;
  }
  return result;
}

}  // namespace orrery
