#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "kernels/cuda/driver_function.h"
#include "kernels/execute/finite.h"
#include "kernels/execute/rank_step.h"
#include "kernels/execute/stand_still.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t bytes_in(const Tensor& tensor) {
  return static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
}

// By the driver: the runtime has no name for memory operations of streams.
CUgraphNodeType type_of(cudaGraphNode_t node) {
  static const auto get_type =
      cuda::driver_function<decltype(&cuGraphNodeGetType)>("cuGraphNodeGetType");
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (const CUresult code = get_type(node, &type); code != CUDA_SUCCESS) {
    throw std::runtime_error("cuGraphNodeGetType: error " + std::to_string(static_cast<int>(code)));
  }
  return type;
}

void delay(Seconds time, const cuda::Stream& stream) {
  if (time > Seconds(0)) stand_still(stream, time);
}

}  // namespace

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
    const CUgraphNodeType type = type_of(node);
    if (type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
        type == CU_GRAPH_NODE_TYPE_MEMSET) {
      ++count;
    }
  }
  return count;
}

bool RankStep::is_nccl(const Task& task) const {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  return std::holds_alternative<CommOp>(op.body) &&
         !is_own_all_reduce_[static_cast<std::size_t>(task.op)] &&
         !communicators_.is_between_peers(plan_, op);
}

bool RankStep::may_connect(const Task& task) {
  if (!is_nccl(task)) return false;
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  double bytes = 0;
  for (const TensorView& view : op.writes) {
    bytes += bytes_of(plan_.tensors()[static_cast<std::size_t>(view.tensor)]).value();
  }
  return rank_.sends_anew(communicators_.group(plan_, op), std::get<CommOp>(op.body).kind, bytes);
}

void RankStep::wait_for_streams() {
  for (const int stream : streams_) {
    came_here_.record(rank_.stream(stream));
    team_.wait(came_here_);
  }
}

void RankStep::enqueue_tasks(bool connects) {
  const cuda::Stream& main = rank_.stream(0);
  current_ = tasks_.size();
  for (const Zeroed& zeroed : zeroed_) {
    ORRERY_CUDA(cudaMemsetAsync(arena_->get() + zeroed.offset, 0,
                                static_cast<std::size_t>(zeroed.bytes), main.get()));
  }
  if (counts_nodes_) num_nodes_before_ = captured_nodes();
  int nodes = num_nodes_before_;
  std::int64_t next_layer = 0;  // of the KV cache, to be announced
  if (streams_.size() > 1) rank_.fork.record(main);
  for (const int stream : streams_) {
    if (stream != 0) {
      rank_.fork.hold(rank_.stream(stream));
    }
  }
  for (current_ = 0; current_ < tasks_.size(); ++current_) {
    const Clock::time_point begin = launch_times_ != nullptr ? Clock::now() : Clock::time_point();
    const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[current_].op)];
    const cuda::Stream& stream = rank_.stream(op.stream);
    const std::string& name = names_[static_cast<std::size_t>(tasks_[current_].op)];
    const bool poisons = rank_.reach(setup_, name, stream);
    for (const std::int32_t before : waits_[current_]) {
      events_[static_cast<std::size_t>(before)]->hold(stream);
    }
    if (setup_.delay_before) delay(setup_.delay_before(rank_.rank(), name), stream);
    if (announces_layers_ && kv_layer(tasks_[current_]) >= next_layer) {
      next_layer = kv_layer(tasks_[current_]) + 1;
      setup_.kv_hook->begin_layer(rank_.rank(), next_layer - 1, stream);
    }
    if (not_finite_) zero_writes(tasks_[current_], stream);
    if (!launches_[current_]) launches_[current_] = bind_task(tasks_[current_]);
    if (connects && may_connect(tasks_[current_])) wait_for_streams();
    launches_[current_](stream);
    if (recorded_[current_]) record(tasks_[current_], stream);
    if (!expert_counts_.empty()) copy_counts(tasks_[current_], stream);
    if (poisons || not_finite_) visit_writes(tasks_[current_], stream, poisons);
    if (events_[current_]) events_[current_]->record(stream);
    if (launch_times_ != nullptr) {
      (*launch_times_)[current_] = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (counts_nodes_) {
      const int after = captured_nodes();
      num_nodes_[current_] = after - nodes;
      nodes = after;
    }
  }
  for (const int stream : streams_) {
    if (stream == 0) continue;
    const cuda::OrderEvent& join = rank_.join(stream);
    join.record(rank_.stream(stream));
    join.hold(main);
  }
}

void RankStep::capture(bool counts_nodes) {
  counts_nodes_ = counts_nodes;
  num_nodes_.assign(counts_nodes ? tasks_.size() : 0, 0);
  num_nodes_before_ = 0;
  graph_.reset();
  try {
    graph_ = cuda::Graph::capture(rank_.stream(0), [this] { enqueue_tasks(/*connects=*/false); });
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

void RankStep::stage(std::span<const StepPart> parts, std::span<const StepPart> all) {
  const std::span<std::byte> staging(rank_.staging(table_bytes_),
                                     static_cast<std::size_t>(table_bytes_));
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    Part& part = parts_[m];
    fill_tables(parts[m], part.layout, rank_.cache(), first_vocab_row_, staging);
    if (part.share.has_prompts()) {
      fill_context_tables(parts[m], part.share, part.layout, part.context, rank_.cache(), staging);
    } else if (part.share.decodes.room > 0) {
      deal_decodes(parts[m], part.share, part.layout, staging);
    }
    part.sampled_rows = sampled_rows(parts[m], part.share);
  }
  if (!moves_.has_even) return;
  const EvenParts even(all, even_.moves.own, even_.moves.rows);
  even.fill(setup_.grid.dp_rank(rank_.rank()), even_.layout, first_vocab_row_, staging);
  even_.moves.to_even = even.runs(RowMove::kToEven);
  even_.moves.to_sampled = even.runs(RowMove::kToSampled);
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
  rank_.start.record(main);
  ORRERY_CUDA(cudaMemcpyAsync(tables_->get(), rank_.staging(table_bytes_),
                              static_cast<std::size_t>(table_bytes_), cudaMemcpyHostToDevice,
                              main.get()));
  announces_layers_ = setup_.kv_hook != nullptr && !replays && !megakernel_;
  if (setup_.kv_hook != nullptr) {
    setup_.kv_hook->begin_step(rank_.rank(), main, announces_layers_);
  }
  if (replays) {
    static const std::string graph_op = "graph";
    static_cast<void>(rank_.reach(setup_, graph_op, main));
    graph_->launch(main);
  } else if (megakernel_) {
    static const std::string megakernel_op = "megakernel";
    static_cast<void>(rank_.reach(setup_, megakernel_op, main));
    megakernel_->launch(main);
  } else {
    enqueue_tasks(/*connects=*/!std::exchange(has_connected_, true));
  }
  announces_layers_ = false;
  rank_.end.record(main);
  for (const Part& part : parts_) {
    if (!has_results(part)) continue;
    const auto offset = buffers_.offsets[static_cast<std::size_t>(part.next_tokens)];
    ORRERY_CUDA(cudaMemcpyAsync(rank_.results(0) + part.first_result, arena_->get() + offset,
                                static_cast<std::size_t>(part.own_seqs) * sizeof(std::int32_t),
                                cudaMemcpyDeviceToHost, main.get()));
  }
  if (faults_) {
    ORRERY_CUDA(cudaMemcpyAsync(host_faults_->get(), faults_->get(),
                                faults_->size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                                main.get()));
  }
  rank_.done.record(main);
  if (setup_.kv_hook != nullptr) setup_.kv_hook->end_step(rank_.rank(), main);
}

void RankStep::wait() {
  current_ = tasks_.size();
  try {
    team_.wait(rank_.done);
    rank_.watch().idle(rank_.rank());
    if (!megakernel_) return;
    if (const auto failure = megakernel_->take_failure(rank_.stream(0)); failure) {
      throw RankError(rank_.rank(), "megakernel", *failure);
    }
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

void RankStep::zero_writes(const Task& task, const cuda::Stream& stream) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  for (const TensorId id : op.writes) {
    const auto i = static_cast<std::size_t>(id);
    const bool is_read = std::ranges::find(op.reads, id, &TensorView::tensor) != op.reads.end();
    if (is_read || first_writers_[i] != task.op || buffers_.offsets[i] < 0) continue;
    if (lands(id)) continue;  // another rank may have written it already
    const Tensor& tensor = plan_.tensors()[i];
    if (!plan_.contains(tensor.ranks, rank_.rank())) continue;
    ORRERY_CUDA(cudaMemsetAsync(arena_->get() + buffers_.offsets[i], 0,
                                static_cast<std::size_t>(bytes_in(tensor)), stream.get()));
  }
}

void RankStep::visit_writes(const Task& task, const cuda::Stream& stream, bool poisons) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  const bool arrives = one_way(plan_, op).has_value();
  for (const TensorId id : op.writes) {
    const Operand written = operand(id, task.copy);
    if (written.data == nullptr) continue;
    if (poisons && written.tensor->dtype != DType::kInt32) {  // counts say where memory is
      ORRERY_CUDA(cudaMemsetAsync(
          written.data, 0xFF, static_cast<std::size_t>(bytes_in(*written.tensor)), stream.get()));
    }
    // What lands was looked at where it was sent; rows that fill it up hold anything.
    if (not_finite_ && !is_log_sum_[static_cast<std::size_t>(id)] && !(arrives && lands(id))) {
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
  const bool has_own_rows = part.share.is_of_model || part.share.decodes.room > 0;
  const bool is_first =
      has_own_rows ? setup_.grid.tp_rank(rank_.rank()) == 0 : setup_.grid.is_first(rank_.rank());
  return part.next_tokens >= 0 && is_first;
}

int RankStep::num_results() const {
  const auto results =
      std::ranges::count_if(parts_, [this](const Part& part) { return has_results(part); });
  return static_cast<int>(results) + (faults_ ? 1 : 0);
}

std::optional<RankStep::Faults> RankStep::first_faults() const {
  std::optional<Faults> first;
  if (moves_.has_even) return first;  // rows that pad the step lie among those of other ranks
  for (const auto& [tensor, word] : fault_words_) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[word.task].op)];
    const Part& part = parts_[static_cast<std::size_t>(micro_batch_of(op))];
    std::int64_t padding = part.rows.prefill;
    for (const PrefillChunk& chunk : part.prefill) padding -= chunk.query;
    const std::int32_t tokens = host_faults_->get()[word.place];
    if (tokens > padding && (!first || word.task < first->task)) {
      first = {.task = word.task, .tokens = tokens};
    }
  }
  return first;
}

std::span<const std::int32_t> RankStep::sampled(int micro_batch) const {
  const Part& part = parts_[static_cast<std::size_t>(micro_batch)];
  if (!has_results(part)) return {};
  return {rank_.results(0) + part.first_result, static_cast<std::size_t>(part.own_seqs)};
}

}  // namespace orrery
