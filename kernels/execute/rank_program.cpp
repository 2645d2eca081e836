#include "kernels/execute/rank_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/execute/row_moves.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

// Spaces of MemoryRange.
constexpr int kArena = 0;
constexpr int kKvCache = 1;

// Ops [first, last) that run `count` times one after the other.
struct Section {
  OpId first = 0;
  OpId last = 0;
  std::int64_t count = 1;
};

std::vector<Section> sections(const Plan& plan) {
  std::vector<Section> result;
  OpId done = 0;
  const auto add_plain = [&](OpId end) {
    if (done < end) result.push_back({.first = done, .last = end, .count = 1});
  };
  for (const Repeat& repeat : plan.repeats()) {
    add_plain(repeat.first);
    result.push_back({.first = repeat.first, .last = repeat.last, .count = repeat.count});
    done = repeat.last;
  }
  add_plain(static_cast<OpId>(plan.ops().size()));
  return result;
}

const Op& op_of(const Plan& plan, OpId id) { return plan.ops()[static_cast<std::size_t>(id)]; }
const Tensor& tensor_of(const Plan& plan, TensorId id) {
  return plan.tensors()[static_cast<std::size_t>(id)];
}

// Bytes of row scales that an fp8 activation has beside it, one float per row.
std::int64_t scale_bytes(const Tensor& tensor) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < tensor.axes.size(); ++i) rows *= tensor.axes[i].size;
  return rows * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

std::vector<Task> rank_tasks(const Plan& plan, int rank) {
  std::vector<Task> tasks;
  for (const Section& section : sections(plan)) {
    for (std::int64_t copy = 0; copy < section.count; ++copy) {
      for (OpId id = section.first; id < section.last; ++id) {
        if (!plan.contains(op_of(plan, id).ranks, rank)) continue;
        tasks.push_back({.op = id, .copy = static_cast<std::int32_t>(copy)});
      }
    }
  }
  return tasks;
}

bool runs_before(const Plan& plan, const Task& a, const Task& b) {
  const bool are_of_one_run = std::ranges::any_of(plan.repeats(), [&](const Repeat& repeat) {
    const auto has = [&](OpId op) { return op >= repeat.first && op < repeat.last; };
    return has(a.op) && has(b.op);
  });
  if (are_of_one_run && a.copy != b.copy) return a.copy < b.copy;
  return a.op < b.op;
}

std::string task_name(const Plan& plan, const Task& task) {
  const std::string name = printed_name(op_of(plan, task.op));
  return plan.multiplicity(task.op) > 1 ? name + "#" + std::to_string(task.copy) : name;
}

int micro_batch_of(const Op& op) { return std::max<int>(op.micro_batch, 0); }

int num_micro_batches(const Plan& plan) {
  int most = 0;
  for (const Op& op : plan.ops()) most = std::max(most, micro_batch_of(op));
  return most + 1;
}

std::int64_t first_on(const Plan& plan, const Axis& axis, int rank) {
  const std::vector<AxisRange> ranges = plan.ranges_of(axis, rank);
  return ranges.empty() ? plan.whole_size(axis) : ranges.front().global;
}

bool sends_slice(const Plan& plan, CollectiveKind kind, const Tensor& input, const Tensor& output) {
  return (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kAllGather) &&
         input.axes.size() > 1 && plan.split_of(input.axes.back()) == nullptr &&
         plan.split_of(output.axes.back()) != nullptr;
}

bool gathers_sampled(const Plan& plan, const Op& op) {
  return std::get<CommOp>(op.body).kind == CollectiveKind::kAllGather && op.reads.size() == 1 &&
         op.writes.size() == 1 && tensor_of(plan, op.reads[0]).axes.front().name == axis::kTokens &&
         tensor_of(plan, op.writes[0]).axes.front().name == axis::kSeqs;
}

bool brings_columns(CollectiveKind kind, const Tensor& input, const Tensor& output,
                    std::int64_t num_ranks) {
  return kind == CollectiveKind::kAllToAll && input.axes.size() == 2 && output.axes.size() == 2 &&
         input.axes.back().name == output.axes.back().name &&
         input.axes.back().size < output.axes.back().size &&
         input.axes.front().size == output.axes.front().size * num_ranks;
}

bool is_layer_plan(const Plan& plan) {
  return std::ranges::none_of(plan.ops(), [](const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && (kernel->kernel == "embedding" || kernel->kernel == "sample");
  });
}

std::vector<OpId> host_waits(const Plan& plan, int rank) {
  std::vector<OpId> ids;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = op_of(plan, id);
    const auto* host = std::get_if<HostOp>(&op.body);
    const bool waits = host != nullptr && host->kind == HostKind::kD2hSync && !op.reads.empty();
    if (waits && plan.contains(op.ranks, rank)) ids.push_back(id);
  }
  return ids;
}

KvLayers kv_layers(const Plan& plan, int rank) {
  KvLayers layers{.first = std::vector<std::int64_t>(plan.tensors().size(), -1),
                  .stride = std::vector<std::int64_t>(plan.tensors().size(), 0)};
  struct Layer {
    std::int64_t first = 0;
    std::int64_t stride = 0;
  };
  // By name, which micro-batches share, and the copies of the run that come before.
  using Name = std::pair<std::string_view, std::int32_t>;
  const auto name_of = [&](TensorId id) {
    return Name{tensor_of(plan, id).name, tensor_of(plan, id).first_copy};
  };
  std::map<Name, Layer> places;
  for (const Section& section : sections(plan)) {
    std::vector<Name> found;  // new in this section
    std::vector<TensorId> tensors;
    for (OpId id = section.first; id < section.last; ++id) {
      const Op& op = op_of(plan, id);
      if (!plan.contains(op.ranks, rank)) continue;
      for (const TensorId tensor : op.writes) {
        if (tensor_of(plan, tensor).role != TensorRole::kKvCache) continue;
        tensors.push_back(tensor);
        const Name name = name_of(tensor);
        if (!places.contains(name) && std::ranges::find(found, name) == found.end()) {
          found.push_back(name);
        }
      }
    }
    const auto num_new = static_cast<std::int64_t>(found.size());
    for (std::int64_t i = 0; i < num_new; ++i) {
      places[found[static_cast<std::size_t>(i)]] = {.first = layers.count + i,
                                                    .stride = section.count > 1 ? num_new : 0};
    }
    layers.count += num_new * section.count;
    for (const TensorId tensor : tensors) {
      const Layer& place = places.at(name_of(tensor));
      layers.first[static_cast<std::size_t>(tensor)] = place.first;
      layers.stride[static_cast<std::size_t>(tensor)] = place.stride;
    }
  }
  return layers;
}

StepRows step_rows(const Plan& plan, int rank, int micro_batch) {
  StepRows rows;
  const bool is_even = has_even_rows(plan);
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || micro_batch_of(op) != micro_batch) continue;
    if (kernel->kernel == "sample") rows.seqs = dim(kernel->dims, "seqs");
    if (!plan.contains(op.ranks, rank)) continue;
    // Sequence parallelism cuts the rows of norms, never those of these; balanced rows of
    // data-parallel ranks are other ones.
    if ((kernel->kernel == "embedding" && !is_even) || kernel->kernel == "kv_append") {
      rows.tokens = std::max(rows.tokens, dim(kernel->dims, "tokens"));
    } else if (kernel->kernel == "attention_prefill" || kernel->kernel == "mla_prefill") {
      rows.prefill = tensor_of(plan, op.writes.front()).axes.front().size;
    } else if (kernel->kernel == "attention_decode" || kernel->kernel == "mla_decode") {
      rows.decodes = dim(kernel->dims, "batch");
    }
  }
  // Context-parallel ranks append some of the decodes alone.
  rows.tokens = std::max(rows.tokens, rows.prefill + rows.decodes);
  return rows;
}

std::vector<TaskMemory> task_memory(const Plan& plan, int rank, const std::vector<Task>& tasks,
                                    const BufferPlan& buffers, const KvLayers& layers) {
  std::vector<TaskMemory> result;
  result.reserve(tasks.size());
  std::vector<std::int32_t> latest(plan.ops().size(), -1);  // task of the op's latest copy
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const Op& op = op_of(plan, tasks[task].op);
    TaskMemory memory{.stream = op.stream};
    const auto add = [&](std::vector<MemoryRange>& ranges, TensorId id) {
      const auto i = static_cast<std::size_t>(id);
      const Tensor& tensor = plan.tensors()[i];
      if (!plan.contains(tensor.ranks, rank)) return;  // a collective's other end
      if (const auto layer = layers.layer(id, tasks[task].copy); layer >= 0) {
        ranges.push_back({.space = kKvCache, .begin = layer, .end = layer + 1});
      }
      if (const auto offset = buffers.offsets[i]; offset >= 0) {
        const auto bytes = static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
        ranges.push_back({.space = kArena, .begin = offset, .end = offset + bytes});
      }
      if (const auto offset = buffers.scales[i]; offset >= 0) {
        ranges.push_back({.space = kArena, .begin = offset, .end = offset + scale_bytes(tensor)});
      }
    };
    for (const TensorId id : op.reads) add(memory.reads, id);
    for (const TensorId id : op.writes) add(memory.writes, id);
    for (const OpId before : op.after) {
      const std::int32_t found = latest[static_cast<std::size_t>(before)];
      if (found < 0) {
        throw std::invalid_argument("op \"" + printed_name(op) + "\" is after \"" +
                                    printed_name(op_of(plan, before)) + "\", which rank " +
                                    std::to_string(rank) + " does not run before it");
      }
      memory.after.push_back(found);
    }
    latest[static_cast<std::size_t>(tasks[task].op)] = static_cast<std::int32_t>(task);
    result.push_back(std::move(memory));
  }
  return result;
}

}  // namespace orrery
