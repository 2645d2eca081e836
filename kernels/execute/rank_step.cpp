#include "kernels/execute/rank_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <set>
#include <stdexcept>

#include "kernels/cuda/dtypes.h"
#include "kernels/execute/collective_binding.h"
#include "kernels/execute/finite.h"
#include "kernels/execute/hazards.h"

namespace orrery {
namespace {

std::int64_t bytes_in(const Tensor& tensor) {
  return static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
}

template <typename T>
const T* at(const cuda::DeviceBuffer<std::byte>& buffer, std::int64_t offset) {
  return reinterpret_cast<const T*>(buffer.get() + offset);
}

}  // namespace

RankStep::RankStep(const Plan& plan, const ExecutorSetup& setup, RankDevice& rank,
                   Communicators& communicators)
    : plan_(plan),
      setup_(setup),
      rank_(rank),
      communicators_(communicators),
      tasks_(rank_tasks(plan, rank.rank())),
      copies_(num_copies(plan)),
      buffers_(plan_buffers(plan, rank.rank())),
      layers_(kv_layers(plan, rank.rank())),
      arena_(rank.arena(buffers_.arena_bytes)) {
  if (layers_.count != rank.layers().count) {
    throw std::invalid_argument("a plan with " + std::to_string(layers_.count) +
                                " layers of KV cache on rank " + std::to_string(rank.rank()) +
                                ", the executor was made for " +
                                std::to_string(rank.layers().count));
  }
  find_parts();
  find_events();
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role == TensorRole::kInput && tensor.dtype != DType::kInt32 &&
        buffers_.offsets[i] >= 0) {
      zeroed_.push_back({.offset = buffers_.offsets[i], .bytes = bytes_in(tensor)});
    }
  }
}

void RankStep::find_parts() {
  std::int64_t results = 0;
  for (int m = 0; m < num_micro_batches(plan_); ++m) {
    Part part{.rows = step_rows(plan_, rank_.rank(), m)};
    for (const Op& op : plan_.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr || !plan_.contains(op.ranks, rank_.rank())) continue;
      if (kernel->kernel == "sample" && micro_batch_of(op.name) == m) {
        part.logits = op.reads.front();
        part.next_tokens = op.writes.front();
        part.first_result = results;
        results += part.rows.seqs;
      }
      if (kernel->kernel == "embedding") {
        const Tensor& table = plan_.tensors()[static_cast<std::size_t>(op.reads.back())];
        first_vocab_row_ =
            static_cast<std::int32_t>(setup_.grid.tp_rank(rank_.rank()) * table.axes.front().size);
      }
    }
    parts_.push_back(std::move(part));
  }
  static_cast<void>(rank_.results(results));
}

void RankStep::find_events() {
  std::set<int> streams{0};
  for (const Task& task : tasks_) {
    streams.insert(plan_.ops()[static_cast<std::size_t>(task.op)].stream);
  }
  streams_.assign(streams.begin(), streams.end());
  waits_.resize(tasks_.size());
  events_.resize(tasks_.size());
  if (streams_.size() == 1) return;
  waits_ = event_waits(task_memory(plan_, rank_.rank(), tasks_, buffers_, layers_));
  for (const auto& waits : waits_) {
    for (const std::int32_t before : waits) {
      auto& event = events_[static_cast<std::size_t>(before)];
      if (!event) event = std::make_unique<cuda::Event>();
    }
  }
}

void RankStep::set_tables(std::span<const StepPart> parts) {
  std::int64_t end = 0;
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    Part& part = parts_[m];
    part.prefill.clear();
    part.tables.max_context = 0;
    for (const SequenceTokens* chunk : parts[m].prefill) {
      part.prefill.push_back({.query = static_cast<std::int32_t>(chunk->tokens.size()),
                              .context = static_cast<std::int32_t>(chunk->context)});
    }
    for (const SequenceTokens* decode : parts[m].decodes) {
      part.tables.max_context = std::max(part.tables.max_context, decode->context + 1);
    }
    part.layout =
        table_layout(part.rows, static_cast<std::int64_t>(part.prefill.size()), rank_.cache(), end);
    end = part.layout.end;
  }
  tables_ = rank_.tables(end);
  static_cast<void>(rank_.staging(end));
  for (Part& part : parts_) {
    const TableLayout& layout = part.layout;
    StepTables& tables = part.tables;
    tables.token_ids = at<std::int32_t>(*tables_, layout.token_ids);
    tables.positions = at<std::int32_t>(*tables_, layout.positions);
    tables.slots = at<std::int64_t>(*tables_, layout.slots);
    tables.sampled_rows = at<std::int32_t>(*tables_, layout.sampled_rows);
    tables.decode_lengths = at<std::int32_t>(*tables_, layout.decode_lengths);
    tables.decode_blocks = at<std::int32_t>(*tables_, layout.decode_blocks);
    tables.prefill_blocks = at<std::int32_t>(*tables_, layout.prefill_blocks);
    tables.blocks_per_sequence = rank_.cache().blocks_per_sequence();
    tables.prefill = part.prefill;
    tables.num_decodes = part.rows.decodes;
    tables.samples_all_rows = samples_all_rows(part.rows);
    tables.cosines = rank_.cosines();
    tables.sines = rank_.sines();
  }
}

void RankStep::bind(std::span<const StepPart> parts) {
  graph_.reset();
  launches_.clear();
  num_nodes_.clear();
  own_all_reduces_.clear();
  set_tables(parts);
  launches_.resize(tasks_.size());
  // Tiles of prefill belong to a micro-batch: its tasks are bound together.
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    for (const int stream : streams_) rank_.resources(stream).begin_step(parts_[m].prefill);
    for (current_ = 0; current_ < tasks_.size(); ++current_) {
      const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[current_].op)];
      if (micro_batch_of(op.name) != static_cast<int>(m)) continue;
      try {
        launches_[current_] = bind_task(tasks_[current_]);
      } catch (...) {  // named, and thrown again
        rethrow_named();
      }
    }
  }
}

Operand RankStep::operand(TensorId id, std::int32_t copy) const {
  const auto i = static_cast<std::size_t>(id);
  const Tensor& tensor = plan_.tensors()[i];
  if (!plan_.contains(tensor.ranks, rank_.rank())) return {.tensor = &tensor};
  if (tensor.role == TensorRole::kWeight) return rank_.weight(tensor, copies_[i], copy);
  if (tensor.role == TensorRole::kKvCache || buffers_.offsets[i] < 0) return {.tensor = &tensor};
  std::byte* const scales = buffers_.scales[i] < 0 ? nullptr : arena_->get() + buffers_.scales[i];
  return {.data = arena_->get() + buffers_.offsets[i],
          .scales = reinterpret_cast<float*>(scales),
          .tensor = &tensor};
}

Launch RankStep::bind_task(const Task& task) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  std::vector<Operand> reads;
  std::vector<Operand> writes;
  std::int64_t layer = -1;
  const auto add = [&](std::vector<Operand>& operands, TensorId id) {
    operands.push_back(operand(id, task.copy));
    layer = std::max(layer, layers_.layer(id, task.copy));
  };
  for (const TensorId id : op.reads) add(reads, id);
  for (const TensorId id : op.writes) add(writes, id);
  BindResources& resources = rank_.resources(op.stream);
  if (std::holds_alternative<CommOp>(op.body)) {
    const CollectiveContext context{.plan = plan_,
                                    .op = op,
                                    .rank = rank_.rank(),
                                    .reads = reads,
                                    .writes = writes,
                                    .group = communicators_.group(plan_.ranks(op.ranks)),
                                    .resources = resources};
    if (is_own_all_reduce(context)) own_all_reduces_.push_back(task_name(plan_, task));
    return bind_collective(context);
  }
  // Host ops are what a step costs the host: here they happen by themselves.
  if (std::holds_alternative<HostOp>(op.body)) return [](const cuda::Stream&) {};
  const auto& kernel = std::get<KernelOp>(op.body);
  const KernelBinding* const binding = find_kernel_binding(kernel.kernel);
  if (binding == nullptr) {
    throw std::invalid_argument("kernel \"" + kernel.kernel + "\" cannot be executed");
  }
  const Part& part = parts_[static_cast<std::size_t>(micro_batch_of(op.name))];
  return binding->bind({.op = kernel,
                        .reads = reads,
                        .writes = writes,
                        .tables = part.tables,
                        .numbers = setup_.numbers,
                        .kv = &rank_.kv(),
                        .kv_layer = layer,
                        .resources = resources});
}

void RankStep::rethrow_named() const {
  const std::string op =
      current_ < tasks_.size() ? task_name(plan_, tasks_[current_]) : std::string();
  try {
    throw;
  } catch (const RankAbandoned&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(on_rank(rank_.rank(), op, error).what());
  } catch (const std::exception& error) {
    throw on_rank(rank_.rank(), op, error);
  }
}

int RankStep::captured_nodes() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  ORRERY_CUDA(cudaStreamGetCaptureInfo(rank_.stream(0).get(), &status, nullptr, &graph, nullptr,
                                       nullptr, nullptr));
  std::size_t size = 0;
  ORRERY_CUDA(cudaGraphGetNodes(graph, nullptr, &size));
  std::vector<cudaGraphNode_t> nodes(size);
  if (size > 0) ORRERY_CUDA(cudaGraphGetNodes(graph, nodes.data(), &size));
  int count = 0;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    ORRERY_CUDA(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
        type == cudaGraphNodeTypeMemset) {
      ++count;
    }
  }
  return count;
}

void RankStep::enqueue_tasks() {
  const cuda::Stream& main = rank_.stream(0);
  current_ = tasks_.size();
  for (const Zeroed& zeroed : zeroed_) {
    ORRERY_CUDA(cudaMemsetAsync(arena_->get() + zeroed.offset, 0,
                                static_cast<std::size_t>(zeroed.bytes), main.get()));
  }
  if (counts_nodes_) num_nodes_before_ = captured_nodes();
  int nodes = num_nodes_before_;
  if (streams_.size() > 1) rank_.fork.record(main);
  for (const int stream : streams_) {
    if (stream != 0) {
      ORRERY_CUDA(cudaStreamWaitEvent(rank_.stream(stream).get(), rank_.fork.get(), 0));
    }
  }
  for (current_ = 0; current_ < tasks_.size(); ++current_) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[current_].op)];
    const cuda::Stream& stream = rank_.stream(op.stream);
    const bool spoils = rank_.reach(setup_, op.name, stream);
    for (const std::int32_t before : waits_[current_]) {
      const cuda::Event& event = *events_[static_cast<std::size_t>(before)];
      ORRERY_CUDA(cudaStreamWaitEvent(stream.get(), event.get(), 0));
    }
    launches_[current_](stream);
    if (spoils || not_finite_) visit_writes(tasks_[current_], stream, spoils);
    if (events_[current_]) events_[current_]->record(stream);
    if (counts_nodes_) {
      const int after = captured_nodes();
      num_nodes_[current_] = after - nodes;
      nodes = after;
    }
  }
  for (const int stream : streams_) {
    if (stream == 0) continue;
    const cuda::Event& join = rank_.join(stream);
    join.record(rank_.stream(stream));
    ORRERY_CUDA(cudaStreamWaitEvent(main.get(), join.get(), 0));
  }
}

void RankStep::capture(bool counts_nodes) {
  counts_nodes_ = counts_nodes;
  num_nodes_.assign(counts_nodes ? tasks_.size() : 0, 0);
  num_nodes_before_ = 0;
  graph_.reset();
  try {
    graph_ = cuda::Graph::capture(rank_.stream(0), [this] { enqueue_tasks(); });
    counts_nodes_ = false;
    graph_->upload(rank_.stream(0));
  } catch (...) {  // named, and thrown again
    counts_nodes_ = false;
    rethrow_named();
  }
}

void RankStep::count_nodes() {
  capture(/*counts_nodes=*/true);
  graph_.reset();
}

void RankStep::stage(std::span<const StepPart> parts) {
  const std::int64_t end = parts_.back().layout.end;
  const std::span<std::byte> staging(rank_.staging(end), static_cast<std::size_t>(end));
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    fill_tables(parts[m], parts_[m].layout, rank_.cache(), first_vocab_row_, staging);
  }
}

void RankStep::enqueue() {
  try {
    enqueue_step(graph_.has_value());
    rank_.watch().waiting(rank_.rank());
  } catch (...) {  // named, and thrown again
    rethrow_named();
  }
}

void RankStep::enqueue_step(bool replays) {
  const cuda::Stream& main = rank_.stream(0);
  current_ = tasks_.size();
  const std::int64_t end = parts_.back().layout.end;
  rank_.start.record(main);
  ORRERY_CUDA(cudaMemcpyAsync(tables_->get(), rank_.staging(end), static_cast<std::size_t>(end),
                              cudaMemcpyHostToDevice, main.get()));
  if (replays) {
    static const std::string kGraph = "graph";
    static_cast<void>(rank_.reach(setup_, kGraph, main));
    graph_->launch(main);
  } else {
    enqueue_tasks();
  }
  rank_.end.record(main);
  for (const Part& part : parts_) {
    if (!has_results(part)) continue;
    const auto offset = buffers_.offsets[static_cast<std::size_t>(part.next_tokens)];
    ORRERY_CUDA(cudaMemcpyAsync(rank_.results(0) + part.first_result, arena_->get() + offset,
                                static_cast<std::size_t>(part.rows.seqs) * sizeof(std::int32_t),
                                cudaMemcpyDeviceToHost, main.get()));
  }
  rank_.done.record(main);
}

void RankStep::wait(const RankTeam& team) {
  current_ = tasks_.size();
  try {
    team.wait(rank_.done);
    rank_.watch().idle(rank_.rank());
  } catch (...) {  // named, and thrown again
    rethrow_named();
  }
}

void RankStep::enqueue_checked() {
  not_finite_.emplace(tasks_.size());
  ORRERY_CUDA(cudaMemsetAsync(not_finite_->get(), 0, tasks_.size() * sizeof(std::uint32_t),
                              rank_.stream(0).get()));
  rank_.stream(0).synchronize();  // before any stream counts
  try {
    enqueue_step(/*replays=*/false);
    rank_.watch().waiting(rank_.rank());
  } catch (...) {  // named, and thrown again
    rethrow_named();
  }
}

void RankStep::visit_writes(const Task& task, const cuda::Stream& stream, bool spoils) {
  for (const TensorId id : plan_.ops()[static_cast<std::size_t>(task.op)].writes) {
    const Operand written = operand(id, task.copy);
    if (written.data == nullptr) continue;
    if (spoils) {
      ORRERY_CUDA(cudaMemsetAsync(
          written.data, 0xFF, static_cast<std::size_t>(bytes_in(*written.tensor)), stream.get()));
    }
    if (not_finite_) {
      count_non_finite(stream, written.tensor->dtype, written.data, num_elements(*written.tensor),
                       not_finite_->get() + current_);
    }
  }
}

int RankStep::first_not_finite(std::uint32_t& num_found) {
  std::vector<std::uint32_t> counts(tasks_.size());
  ORRERY_CUDA(cudaMemcpyAsync(counts.data(), not_finite_->get(),
                              counts.size() * sizeof(std::uint32_t), cudaMemcpyDeviceToHost,
                              rank_.stream(0).get()));
  rank_.stream(0).synchronize();
  not_finite_.reset();
  const auto found = std::ranges::find_if(counts, [](std::uint32_t count) { return count > 0; });
  if (found == counts.end()) return -1;
  num_found = *found;
  return static_cast<int>(found - counts.begin());
}

bool RankStep::has_results(const Part& part) const {
  return part.next_tokens >= 0 && setup_.grid.tp_rank(rank_.rank()) == 0;
}

int RankStep::num_results() const {
  return static_cast<int>(
      std::ranges::count_if(parts_, [this](const Part& part) { return has_results(part); }));
}

std::span<const std::int32_t> RankStep::sampled(int micro_batch) const {
  const Part& part = parts_[static_cast<std::size_t>(micro_batch)];
  if (!has_results(part)) return {};
  return {rank_.results(0) + part.first_result, static_cast<std::size_t>(part.rows.seqs)};
}

std::vector<float> RankStep::logits(int micro_batch) const {
  const Part& part = parts_[static_cast<std::size_t>(micro_batch)];
  if (!has_results(part)) return {};
  const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(part.logits)];
  if (tensor.dtype != DType::kBf16) {
    throw std::invalid_argument("logits are " + std::string(to_text(tensor.dtype)) +
                                ", expected bf16");
  }
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(num_elements(tensor)));
  const auto offset = buffers_.offsets[static_cast<std::size_t>(part.logits)];
  ORRERY_CUDA(cudaMemcpyAsync(bits.data(), arena_->get() + offset,
                              bits.size() * sizeof(std::uint16_t), cudaMemcpyDeviceToHost,
                              rank_.stream(0).get()));
  rank_.stream(0).synchronize();
  std::vector<float> values(bits.size());
  std::ranges::transform(bits, values.begin(), [](std::uint16_t half) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  });
  return values;
}

}  // namespace orrery
