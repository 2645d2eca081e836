#include "kernels/execute/rank_program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

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

// "m<digits>." at `at`: the number and where the rest begins.
struct MicroBatch {
  int number = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};
std::optional<MicroBatch> find_micro_batch(std::string_view name) {
  if (!name.starts_with('s')) return std::nullopt;
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot < 2 || dot + 1 >= name.size() || name[dot + 1] != 'm') {
    return std::nullopt;
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!std::ranges::all_of(name.substr(1, dot - 1), is_digit)) return std::nullopt;
  MicroBatch found{.number = 0, .begin = dot + 1, .end = 0};
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + dot + 2, last, found.number);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  found.end = static_cast<std::size_t>(end - name.data()) + 1;
  return found;
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

std::string task_name(const Plan& plan, const Task& task) {
  const std::string& name = op_of(plan, task.op).name;
  return plan.multiplicity(task.op) > 1 ? name + "#" + std::to_string(task.copy) : name;
}

int micro_batch_of(std::string_view name) {
  const auto found = find_micro_batch(name);
  return found ? found->number : 0;
}

std::string without_micro_batch(std::string_view name) {
  const auto found = find_micro_batch(name);
  if (!found) return std::string(name);
  return std::string(name.substr(0, found->begin)).append(name.substr(found->end));
}

int num_micro_batches(const Plan& plan) {
  int most = 0;
  for (const Op& op : plan.ops()) most = std::max(most, micro_batch_of(op.name));
  return most + 1;
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
  struct Place {
    std::int64_t first = 0;
    std::int64_t stride = 0;
  };
  std::map<std::string, Place> places;  // by name without the micro-batch
  for (const Section& section : sections(plan)) {
    std::vector<std::string> found;  // new in this section
    std::vector<TensorId> tensors;
    for (OpId id = section.first; id < section.last; ++id) {
      const Op& op = op_of(plan, id);
      if (!plan.contains(op.ranks, rank)) continue;
      for (const TensorId tensor : op.writes) {
        if (tensor_of(plan, tensor).role != TensorRole::kKvCache) continue;
        tensors.push_back(tensor);
        std::string name = without_micro_batch(tensor_of(plan, tensor).name);
        if (!places.contains(name) && std::ranges::find(found, name) == found.end()) {
          found.push_back(std::move(name));
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
      const Place& place = places.at(without_micro_batch(tensor_of(plan, tensor).name));
      layers.first[static_cast<std::size_t>(tensor)] = place.first;
      layers.stride[static_cast<std::size_t>(tensor)] = place.stride;
    }
  }
  return layers;
}

StepRows step_rows(const Plan& plan, int rank, int micro_batch) {
  StepRows rows;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || micro_batch_of(op.name) != micro_batch) continue;
    if (kernel->kernel == "sample") rows.seqs = dim(kernel->dims, "seqs");
    if (!plan.contains(op.ranks, rank)) continue;
    // Sequence parallelism cuts the rows of norms, never those of these.
    if (kernel->kernel == "embedding" || kernel->kernel == "kv_append") {
      rows.tokens = std::max(rows.tokens, dim(kernel->dims, "tokens"));
    } else if (kernel->kernel == "attention_prefill" || kernel->kernel == "mla_prefill") {
      rows.prefill = tensor_of(plan, op.writes.front()).axes.front().size;
    } else if (kernel->kernel == "attention_decode" || kernel->kernel == "mla_decode") {
      rows.decodes = dim(kernel->dims, "batch");
    }
  }
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
        throw std::invalid_argument("op \"" + op.name + "\" is after \"" +
                                    op_of(plan, before).name + "\", which rank " +
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
