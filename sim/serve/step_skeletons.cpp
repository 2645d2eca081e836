#include "sim/serve/step_skeletons.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>

#include "sim/model/lowering.h"

namespace orrery {
namespace {

constexpr int kTokenBits = 8;
constexpr int kShapeBits = 6;

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

void add(DeviceTime& sum, const Estimate& estimate, Seconds gap, double count) {
  sum.duration += (estimate.time + gap) * count;
  of_basis(sum.basis, estimate.basis) += estimate.time * count;
}

void set_dim(KernelOp& op, std::string_view name, std::int64_t size) {
  const auto found = std::ranges::find(op.dims, name, &Dim::name);
  if (found != op.dims.end()) found->size = size;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

DeviceTime operator+(const DeviceTime& a, const DeviceTime& b) {
  return {.duration = a.duration + b.duration,
          .basis = {.measured = a.basis.measured + b.basis.measured,
                    .interpolated = a.basis.interpolated + b.basis.interpolated,
                    .roofline = a.basis.roofline + b.basis.roofline}};
}

std::int64_t round_bits(std::int64_t value, int bits) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
  if (width <= bits) return value;
  const std::int64_t step = std::int64_t{1} << (width - bits);
  return (value + step / 2) / step * step;
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
  const StepLevel level = setup.level == StepLevel::kClosedForm ? StepLevel::kHeap : setup.level;
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
  apply_ = priced.is_chain && priced.chains.size() == 1;
}

StepSkeletons::Skeleton StepSkeletons::make_skeleton(std::int64_t tokens, std::int64_t num_sampled,
                                                     Content content) const {
  // Any batch of that many tokens: attention is replaced, so how they are split does not matter.
  Batch batch;
  if (content != Content::kPrefill) {
    batch.num_decodes = content == Content::kDecode ? tokens : std::min(num_sampled, tokens - 1);
    batch.decode_context = batch.num_decodes * 1024;
  }
  if (content != Content::kDecode) {
    const std::int64_t query = tokens - batch.num_decodes;
    batch.prefill.push_back(
        {.query = query, .context = 0, .produces_token = batch.num_decodes == 0});
  }
  const Plan plan = step_plan(setup_, batch);
  const PricedPlan priced = price(plan, *setup_.cost);
  const CostOptions& options = setup_.cost->options();
  const bool is_graph = options.launch_mode == LaunchMode::kGraph;

  Skeleton skeleton;
  skeleton.total = closed_form(priced, *setup_.cost);
  skeleton.launch = is_graph ? Seconds(0) : options.host.eager_launch;
  const int rank = plan.ranks(plan.ops().front().ranks).front();
  DeviceTime rest;
  Seconds attention_sum;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    if (!std::ranges::binary_search(plan.ranks(op.ranks), rank)) continue;
    const auto count = static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
    // The closed form counts one gap before each graph node but the first.
    const Seconds gap = is_graph && i > 0 ? options.host.graph_node : Seconds(0);
    if (is_attention(op)) {
      const auto& kernel = std::get<KernelOp>(op.body);
      auto& list = is_decode_attention(kernel) ? skeleton.decode : skeleton.prefill;
      list.push_back({.op = kernel, .time = priced.times[i].time, .count = count});
      rest.duration += gap * count;
      attention_sum += priced.times[i].time * count;
    } else {
      add(is_per_sequence(plan, op) ? skeleton.tail : rest, priced.times[i], gap, count);
    }
  }
  skeleton.rest = rest.duration;
  skeleton.basis = rest.basis;
  skeleton.all_ops = rest.duration + attention_sum + skeleton.tail.duration;
  return skeleton;
}

const StepSkeletons::Skeleton& StepSkeletons::skeleton(std::int64_t tokens, Content content) {
  const std::pair key{tokens, content};
  {
    const std::shared_lock lock(mutex_);
    const auto found = skeletons_.find(key);
    if (found != skeletons_.end()) return found->second;
  }
  Skeleton made = make_skeleton(tokens, 1, content);
  const std::unique_lock lock(mutex_);
  return skeletons_.try_emplace(key, std::move(made)).first->second;
}

DeviceTime StepSkeletons::tail(std::int64_t num_sampled, Content content) {
  const std::pair key{num_sampled, content};
  {
    const std::shared_lock lock(mutex_);
    const auto found = tails_.find(key);
    if (found != tails_.end()) return found->second;
  }
  const DeviceTime made = make_skeleton(num_sampled, num_sampled, Content::kDecode).tail;
  const std::unique_lock lock(mutex_);
  return tails_.try_emplace(key, made).first->second;
}

DeviceTime StepSkeletons::attention_time(const Attention& attention, std::int64_t batch,
                                         std::int64_t query, std::int64_t context) const {
  KernelOp op = attention.op;
  set_dim(op, "batch", ceil_div(batch, setup_.mesh.dp));
  set_dim(op, "query", query);
  set_dim(op, "context", context);
  DeviceTime result;
  add(result, setup_.cost->kernel(op), Seconds(0), attention.count);
  return result;
}

DeviceTime StepSkeletons::time(const Batch& batch, std::int64_t padded_decodes, double context) {
  const bool has_prefill = !batch.prefill.empty();
  const bool has_decode = batch.num_decodes > 0;
  const Content content = !has_prefill ? Content::kDecode
                          : has_decode ? Content::kBoth
                                       : Content::kPrefill;
  std::int64_t tokens = padded_decodes;
  std::int64_t num_sampled = padded_decodes;
  for (const PrefillChunk& chunk : batch.prefill) {
    tokens += chunk.query;
    num_sampled += chunk.produces_token ? 1 : 0;
  }
  const Skeleton& base = skeleton(
      has_prefill ? std::max<std::int64_t>(round_bits(tokens, kTokenBits), has_decode ? 2 : 1)
                  : tokens,
      content);
  DeviceTime result{.duration = base.rest, .basis = base.basis};
  if (has_prefill) {
    const StepShape shape = step_shape({.prefill = batch.prefill});
    for (const Attention& attention : base.prefill) {
      result = result + attention_time(attention, shape.prefill_batch,
                                       round_bits(shape.prefill_query, kShapeBits),
                                       round_bits(shape.prefill_context, kShapeBits));
    }
  }
  if (has_decode) {
    const auto mean = static_cast<std::int64_t>(std::llround(context));
    for (const Attention& attention : base.decode) {
      result = result + attention_time(attention, batch.num_decodes, 0, mean);
    }
  }
  if (num_sampled > 0) result = result + tail(round_bits(num_sampled, kTokenBits - 2), content);
  // Eager launches: the GPU waits for the first, or throughout when the host is the slower one.
  const bool is_host_bound = base.total > base.all_ops + base.launch * 2;
  result.duration += base.launch;
  if (is_host_bound) result.duration = std::max(result.duration, base.total);
  return result;
}

}  // namespace orrery
