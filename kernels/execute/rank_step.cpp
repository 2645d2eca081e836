#include "kernels/execute/rank_step.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/launch.h"
#include "kernels/execute/collective_binding.h"
#include "kernels/execute/hazards.h"
#include "kernels/execute/side_rows.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

// Copies of an op that are bound ahead of a run; before the first another op may run than before
// the second, which is like all after it.
constexpr std::int32_t kCopiesAhead = 2;

std::int64_t bytes_in(const Tensor& tensor) {
  return static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
}

std::vector<std::string> names_of(const Plan& plan) {
  std::vector<std::string> names;
  names.reserve(plan.ops().size());
  for (const Op& op : plan.ops()) names.push_back(printed_name(op));
  return names;
}

template <typename T>
const T* at(const cuda::DeviceBuffer<std::byte>& buffer, std::int64_t offset) {
  return reinterpret_cast<const T*>(buffer.get() + offset);
}

// Whether `before` is a kernel that reads no weights and writes none of the counts that `op`, a
// kernel, reads.
bool leaves_counts(const Plan& plan, const Op& before, const Op& op, const OperandSlots& slots) {
  if (!std::holds_alternative<KernelOp>(before.body)) return false;
  const auto* const kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr) return false;
  const bool has_weights = std::ranges::any_of(before.reads, [&](const TensorView& read) {
    return plan.tensors()[static_cast<std::size_t>(read.tensor)].role == TensorRole::kWeight;
  });
  if (has_weights) return false;
  const KernelSpec& spec = kernel_spec(kernel->kernel);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    if (spec.slots[slots.reads[i]].use != Use::kCounts) continue;
    const TensorId counts = op.reads[i].tensor;
    if (std::ranges::find(before.writes, counts, &TensorView::tensor) != before.writes.end()) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::int64_t first_expert_of(const Plan& plan, const Op& op, std::int64_t first_of_rank) {
  const auto& kernel = std::get<KernelOp>(op.body);
  if (kernel.kernel != "index_shuffling") return first_of_rank;
  const OperandSlots slots = operand_slots(plan, op);
  const KernelSpec& spec = kernel_spec(kernel.kernel);
  for (std::size_t i = 0; i < op.writes.size(); ++i) {
    if (spec.slots[slots.writes[i]].name != "counts") continue;
    const auto id = static_cast<std::size_t>(op.writes[i].tensor);
    const std::int64_t sorted = num_elements(plan.tensors()[id]);
    return first_of_rank / sorted * sorted;
  }
  return first_of_rank;
}

bool counts_faults(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr &&
         std::ranges::find(kernel_spec(kernel->kernel).slots, "faults", &Slot::name) !=
             kernel_spec(kernel->kernel).slots.end();
}

RankStep::RankStep(const Plan& plan, LaunchMode mode, const ExecutorSetup& setup, RankDevice& rank,
                   Communicators& communicators, const RankTeam& team)
    : plan_(plan),
      setup_(setup),
      rank_(rank),
      communicators_(communicators),
      team_(team),
      tasks_(rank_tasks(plan, rank.rank())),
      names_(names_of(plan)),
      copies_(num_copies(plan)),
      buffers_(plan_buffers(plan, rank.rank())),
      layers_(kv_layers(plan, rank.rank())),
      side_layout_(side_layout(plan)),
      arena_(rank.arena(buffers_.arena_bytes)),
      moves_(row_moves(plan)),
      mode_(mode) {
  if (layers_.count != rank.layers().count) {
    throw std::invalid_argument("a plan with " + std::to_string(layers_.count) +
                                " layers of KV cache on rank " + std::to_string(rank.rank()) +
                                ", the executor was made for " +
                                std::to_string(rank.layers().count));
  }
  find_slots();
  find_parts();
  find_even();
  find_events();
  find_inputs();
  find_host_copies();
  find_recorded();
  find_faults();
  find_counts();
  find_log_sums();
}

void RankStep::find_slots() {
  slots_.resize(plan_.ops().size());
  for (std::size_t i = 0; i < plan_.ops().size(); ++i) {
    const Op& op = plan_.ops()[i];
    if (!std::holds_alternative<KernelOp>(op.body)) continue;
    if (!plan_.contains(op.ranks, rank_.rank())) continue;
    try {
      slots_[i] = executed_slots(plan_, op);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("op \"" + names_[i] + "\": " + error.what());
    }
  }
}

void RankStep::find_inputs() {
  const bool is_layer = is_layer_plan(plan_);
  for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
    const Tensor& tensor = plan_.tensors()[i];
    if (tensor.role != TensorRole::kInput || buffers_.offsets[i] < 0) continue;
    if (is_layer) {
      const auto [input, is_new] =
          inputs_.try_emplace(static_cast<TensorId>(i), static_cast<std::size_t>(bytes_in(tensor)));
      ORRERY_CUDA(
          cudaMemsetAsync(input->second.get(), 0, input->second.size(), rank_.stream(0).get()));
    } else if (tensor.dtype != DType::kInt32) {
      zeroed_.push_back({.offset = buffers_.offsets[i], .bytes = bytes_in(tensor)});
    }
  }
}

void RankStep::find_host_copies() {
  for (const OpId id : host_waits(plan_, rank_.rank())) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    for (const TensorId read : op.reads) {
      const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(read)];
      if (tensor.dtype != DType::kInt32) {
        throw std::invalid_argument("op \"" + printed_name(op) + "\" copies \"" + tensor.name +
                                    "\", " + std::string(to_text(tensor.dtype)) +
                                    ", to the host; expected counts, i32");
      }
      const auto count = static_cast<std::size_t>(num_elements(tensor));
      const auto [copy, is_new] = host_copies_.try_emplace(
          read, HostCopy{.counts = cuda::PinnedBuffer<std::int32_t>(count), .since = id});
      if (is_new) std::fill_n(copy->second.counts.get(), count, 0);
    }
  }
}

void RankStep::find_recorded() {
  first_writers_.assign(plan_.tensors().size(), -1);
  recorded_.resize(tasks_.size());
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[i].op)];
    for (const TensorId id : op.writes) {
      OpId& first = first_writers_[static_cast<std::size_t>(id)];
      if (first < 0) first = tasks_[i].op;
    }
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    if (std::ranges::count(setup_.recorded_kernels, kernel->kernel) == 0) continue;
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(op.writes.front().tensor)];
    if (tensor.dtype != DType::kFp32) {
      throw std::invalid_argument("\"" + tensor.name + "\" is " +
                                  std::string(to_text(tensor.dtype)) +
                                  ", what is recorded is fp32");
    }
    recorded_[i].emplace(static_cast<std::size_t>(num_elements(tensor)));
  }
}

void RankStep::find_faults() {
  constexpr std::size_t kAlignment = 4;  // words, of what kernels write
  std::size_t size = 0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const auto number = static_cast<std::size_t>(tasks_[i].op);
    const Op& op = plan_.ops()[number];
    if (!counts_faults(op)) continue;
    const KernelSpec& spec = kernel_spec(std::get<KernelOp>(op.body).kernel);
    for (std::size_t at = 0; at < op.writes.size(); ++at) {
      if (spec.slots[slots_[number].writes[at]].name != "faults") continue;
      fault_words_[{op.writes[at].tensor, tasks_[i].copy}] = {.task = i, .place = size};
      size += kAlignment;
    }
  }
  if (size == 0) return;
  faults_.emplace(size);
  host_faults_.emplace(size);
  std::fill_n(host_faults_->get(), size, 0);
  ORRERY_CUDA(
      cudaMemsetAsync(faults_->get(), 0, size * sizeof(std::int32_t), rank_.stream(0).get()));
}

void RankStep::find_counts() {
  counts_are_there_.resize(tasks_.size());
  std::map<int, OpId> last;  // by stream
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[i].op)];
    const auto before = last.find(op.stream);
    counts_are_there_[i] =
        before != last.end() &&
        leaves_counts(plan_, plan_.ops()[static_cast<std::size_t>(before->second)], op,
                      slots_[static_cast<std::size_t>(tasks_[i].op)]);
    last[op.stream] = tasks_[i].op;
  }
}

void RankStep::find_log_sums() {
  is_log_sum_.resize(plan_.tensors().size());
  for (std::size_t i = 0; i < plan_.ops().size(); ++i) {
    const Op& op = plan_.ops()[i];
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !plan_.contains(op.ranks, rank_.rank())) continue;
    const KernelSpec& spec = kernel_spec(kernel->kernel);
    const auto mark = [&](const auto& views, const std::vector<std::uint8_t>& slots) {
      for (std::size_t at = 0; at < views.size(); ++at) {
        if (spec.slots[slots[at]].name != "lse") continue;
        is_log_sum_[static_cast<std::size_t>(views[at].tensor)] = true;
      }
    };
    mark(op.reads, slots_[i].reads);
    mark(op.writes, slots_[i].writes);
  }
}

void RankStep::find_parts() {
  std::int64_t results = 0;
  for (int m = 0; m < num_micro_batches(plan_); ++m) {
    Part part{.rows = step_rows(plan_, rank_.rank(), m)};
    part.share = context_share(plan_, setup_.grid, rank_.rank(), m);
    if (part.share.has_prompts()) {
      part.rows.prefill = part.share.own().of_step;
      part.rows.tokens = part.rows.prefill + part.rows.decodes;
    }
    part.own_seqs = part.rows.seqs;
    if (const std::int64_t own = part.share.decodes.room; own > 0) {
      part.rows.seqs += part.rows.decodes - own;
    }
    for (const Op& op : plan_.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr || !plan_.contains(op.ranks, rank_.rank())) continue;
      if (kernel->kernel == "sample" && micro_batch_of(op) == m) {
        part.logits = op.reads.front();
        part.next_tokens = op.writes.front();
        part.first_result = results;
        results += part.own_seqs;
      }
      if (kernel->kernel == "embedding") {
        const Tensor& table = plan_.tensors()[static_cast<std::size_t>(op.reads.back().tensor)];
        first_vocab_row_ =
            static_cast<std::int32_t>(first_on(plan_, table.axes.front(), rank_.rank()));
      }
    }
    parts_.push_back(std::move(part));
  }
  static_cast<void>(rank_.results(results));
}

void RankStep::find_even() {
  if (!moves_.has_even) return;
  if (parts_.size() > 1) {
    throw std::invalid_argument(
        "even parts of all data-parallel ranks' rows (dp_rows balanced) in " +
        std::to_string(parts_.size()) + " micro-batches, expected 1");
  }
  even_.moves = {.own = parts_.front().rows,
                 .rows = rows_of_even_part(plan_),
                 .is_captured = mode_ == LaunchMode::kGraph};
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
  std::vector<TaskMemory> memory = task_memory(plan_, rank_.rank(), tasks_, buffers_, layers_);
  const std::vector<std::int32_t> sent = sent_before(plan_, rank_.rank(), tasks_);
  const std::vector<std::int32_t> computed = computed_before(plan_, rank_.rank(), tasks_);
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    for (const std::int32_t before : {sent[i], computed[i]}) {
      if (before >= 0) memory[i].after.push_back(before);
    }
  }
  waits_ = event_waits(memory);
  for (const auto& waits : waits_) {
    for (const std::int32_t before : waits) {
      auto& event = events_[static_cast<std::size_t>(before)];
      if (!event) event = std::make_unique<cuda::OrderEvent>();
    }
  }
}

void RankStep::set_tables(std::span<const StepPart> parts) {
  std::int64_t end = 0;
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    Part& part = parts_[m];
    part.prefill.clear();
    part.tables.max_context = 1;  // without decodes of its own the rank has rows that pad
    for (const SequenceTokens* chunk : parts[m].prefill) {
      part.prefill.push_back(chunk_of(*chunk));
    }
    for (const SequenceTokens* decode : parts[m].decodes) {
      part.tables.max_context =
          std::max(part.tables.max_context, rank_.cache().stored(decode->context + 1));
    }
    part.layout =
        table_layout(part.rows, static_cast<std::int64_t>(part.prefill.size()), rank_.cache(), end);
    end = part.layout.end;
    if (!part.share.has_prompts()) continue;
    part.pieces = prefill_pieces(part.share, part.prefill);
    if (part.share.is_ring) part.keys_of_ranks = keys_of_ranks(part.share, part.prefill);
    part.context = context_layout(part.share, part.prefill, part.rows.decodes, end);
    end = part.context.end;
  }
  if (moves_.has_even) {
    even_.layout = even_layout(even_.moves.own, even_.moves.rows, end);
    end = even_.layout.end;
  }
  // A layer by itself has no tables: something is uploaded all the same, as traces count on.
  constexpr std::int64_t kLeastBytes = 256;
  table_bytes_ = std::max(end, kLeastBytes);
  tables_ = rank_.tables(table_bytes_);
  static_cast<void>(rank_.staging(table_bytes_));
  for (Part& part : parts_) {
    const TableLayout& layout = part.layout;
    StepTables& tables = part.tables;
    tables.token_ids = at<std::int32_t>(*tables_, layout.token_ids);
    tables.positions = at<std::int32_t>(*tables_, layout.positions);
    tables.slots = at<std::int64_t>(*tables_, layout.slots);
    tables.num_rows = layout.rows.tokens;
    tables.sampled_rows = at<std::int32_t>(*tables_, layout.sampled_rows);
    tables.decode_lengths = at<std::int32_t>(*tables_, layout.decode_lengths);
    tables.decode_blocks = at<std::int32_t>(*tables_, layout.decode_blocks);
    tables.prefill_blocks = at<std::int32_t>(*tables_, layout.prefill_blocks);
    tables.prefill_key_starts = at<std::int32_t>(*tables_, layout.prefill_key_starts);
    tables.blocks_per_sequence = rank_.cache().blocks_per_sequence();
    tables.prefill = part.prefill;
    tables.prefill_rows = part.rows.prefill;
    tables.num_decodes = part.rows.decodes;
    tables.context_ranks = setup_.grid.cp;
    if (part.share.has_prompts()) set_context(part);
    tables.deals_decodes = part.share.decodes.room > 0;
    tables.samples_all_rows = samples_all_rows(part.rows);
    tables.cosines = rank_.cosines();
    tables.sines = rank_.sines();
  }
  if (moves_.has_even) set_even();
}

void RankStep::set_even() {
  const EvenLayout& layout = even_.layout;
  even_.tables.token_ids = at<std::int32_t>(*tables_, layout.token_ids);
  even_.tables.positions = at<std::int32_t>(*tables_, layout.positions);
  even_.tables.cosines = rank_.cosines();
  even_.tables.sines = rank_.sines();
  even_.moves.own_sources = at<std::int32_t>(*tables_, layout.own_sources);
  even_.moves.even_sources = at<std::int32_t>(*tables_, layout.even_sources);
  even_.moves.sampled_sources = at<std::int32_t>(*tables_, layout.sampled_sources);
}

const StepTables& RankStep::tables_of(const Task& task) const {
  if (!moves_.is_on_own[static_cast<std::size_t>(task.op)]) return even_.tables;
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  return parts_[static_cast<std::size_t>(micro_batch_of(op))].tables;
}

void RankStep::check_even(std::span<const StepPart> all) const {
  if (moves_.has_even) static_cast<void>(EvenParts(all, even_.moves.own, even_.moves.rows));
}

void RankStep::set_context(Part& part) {
  const PromptRows& own = part.share.own();
  const ContextLayout& layout = part.context;
  part.tables.prefill_rows = own.room;
  part.tables.context = {.rank = part.share.rank,
                         .prompt_rows = own.room,
                         .cached_rows = layout.cached_rows,
                         .num_keys = layout.num_keys,
                         .step_rows = own.of_step,
                         .key_sources = at<std::int32_t>(*tables_, layout.key_sources),
                         .key_slots = at<std::int64_t>(*tables_, layout.key_slots),
                         .cached_slots = at<std::int32_t>(*tables_, layout.cached_slots),
                         .row_sources = at<std::int32_t>(*tables_, layout.row_sources),
                         .own_rows = at<std::int32_t>(*tables_, layout.own_rows),
                         .keys = {}};
  std::vector<AttendedKeys>& keys = part.tables.context.keys;
  for (const RankKeys& of_rank : part.keys_of_ranks) {
    keys.push_back({.first = of_rank.first, .count = of_rank.count, .pieces = of_rank.pieces});
  }
  if (keys.empty()) keys.push_back({.count = layout.num_keys, .pieces = part.pieces});
}

void RankStep::bind(std::span<const StepPart> parts) {
  graph_.reset();
  launches_.clear();
  row_views_.clear();
  num_nodes_.clear();
  own_all_reduces_.clear();
  sides_ = communicators_.sides();
  set_tables(parts);
  is_own_all_reduce_.assign(plan_.ops().size(), false);
  if (mode_ == LaunchMode::kMegakernel) {
    bind_megakernel();
    return;
  }
  launches_.resize(tasks_.size());
  // Tiles of prefill belong to a micro-batch: its tasks are bound together.
  for (std::size_t m = 0; m < parts_.size(); ++m) {
    for (const int stream : streams_) rank_.resources(stream).begin_step(parts_[m].prefill);
    for (current_ = 0; current_ < tasks_.size(); ++current_) {
      const Op& op = plan_.ops()[static_cast<std::size_t>(tasks_[current_].op)];
      if (micro_batch_of(op) != static_cast<int>(m)) continue;
      if (parts_.size() == 1 && tasks_[current_].copy >= kCopiesAhead) continue;
      try {
        launches_[current_] = bind_task(tasks_[current_]);
      } catch (...) {  // named, and thrown again
        rethrow_named();
      }
    }
  }
  for (const Task& task : tasks_) {
    if (is_own_all_reduce_[static_cast<std::size_t>(task.op)]) {
      own_all_reduces_.push_back(task_name(plan_, task));
    }
  }
}

void RankStep::bind_megakernel() {
  if (megakernel_) return;
  const int num_sms = cuda::device_properties().multiProcessorCount;
  megakernel::Program program =
      megakernel::compile(plan_, {.num_sms = num_sms, .schedule = setup_.megakernel_schedule});
  megakernel::Operands operands{.kv = &rank_.kv(),
                                .tables = &parts_.front().tables,
                                .norm_epsilon = setup_.numbers.norm_epsilon};
  for (const megakernel::WeightName& name : program.weights) {
    const Operand weight = operand(name.tensor, name.copy);
    operands.weights.push_back({.data = weight.data, .scales = weight.scales});
  }
  operands.embedding = static_cast<const bf16*>(operand(program.embedding, 0).data);
  operands.logits = static_cast<bf16*>(operand(program.logits, 0).data);
  operands.next_tokens = static_cast<std::int32_t*>(operand(program.next_tokens, 0).data);
  megakernel_.emplace(std::move(program), operands);
  // Its own, which names SM and instruction, ends before the step's.
  constexpr double kOfStep = 2.0 / 3;
  if (setup_.watch_limit) {
    megakernel_->set_limit(std::max(megakernel::kLimit, *setup_.watch_limit * kOfStep));
  }
}

Operand RankStep::operand(TensorId id, std::int32_t copy) const {
  const auto i = static_cast<std::size_t>(id);
  const Tensor& tensor = plan_.tensors()[i];
  if (!plan_.contains(tensor.ranks, rank_.rank())) return {.tensor = &tensor};
  const bool is_gathered = buffers_.offsets[i] >= 0;  // from shards of several ranks
  if (tensor.role == TensorRole::kWeight && !is_gathered) {
    return rank_.weight(tensor, copies_[i], copy);
  }
  if (const auto input = inputs_.find(id); input != inputs_.end()) {
    return {.data = input->second.get(), .tensor = &tensor};
  }
  if (const auto word = fault_words_.find({id, copy}); word != fault_words_.end()) {
    return {.data = faults_->get() + word->second.place, .tensor = &tensor};
  }
  if (tensor.role == TensorRole::kKvCache || buffers_.offsets[i] < 0) return {.tensor = &tensor};
  if (lands(id)) return landing(id);
  std::byte* const scales = buffers_.scales[i] < 0 ? nullptr : arena_->get() + buffers_.scales[i];
  return {.data = arena_->get() + buffers_.offsets[i],
          .scales = reinterpret_cast<float*>(scales),
          .tensor = &tensor};
}

Operand RankStep::viewed(const TensorView& view, std::int32_t copy) {
  Operand found = operand(view, copy);
  if (view.has_all_rows() || found.data == nullptr) return found;
  const std::int64_t size = found.tensor->axes.front().size;
  found.data =
      static_cast<std::byte*>(found.data) + view.first_row * (bytes_in(*found.tensor) / size);
  if (found.scales != nullptr) {
    found.scales += view.first_row * (matrix_size(*found.tensor).rows / size);
  }
  found.tensor = &row_views_.emplace_back(tensor_of_rows(*found.tensor, view));
  return found;
}

Operand RankStep::landing(TensorId id) const {
  const auto i = static_cast<std::size_t>(id);
  std::byte* const area = sides_->area(rank_.rank());
  std::byte* const scales = side_layout_.scales[i] < 0 ? nullptr : area + side_layout_.scales[i];
  return {.data = area + side_layout_.rows[i],
          .scales = reinterpret_cast<float*>(scales),
          .tensor = &plan_.tensors()[i]};
}

std::int64_t RankStep::kv_layer(const Task& task) const {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  std::int64_t layer = -1;
  for (const auto* ids : {&op.reads, &op.writes}) {
    for (const TensorId id : *ids) layer = std::max(layer, layers_.layer(id, task.copy));
  }
  return layer;
}

Launch RankStep::bind_task(const Task& task) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  std::vector<Operand> reads;
  std::vector<Operand> writes;
  for (const TensorView& view : op.reads) {
    Operand& read = reads.emplace_back(viewed(view, task.copy));
    read.first_column = view.first_column;
    read.num_columns = view.num_columns;
    const auto host = host_copies_.find(view.tensor);
    if (host != host_copies_.end() && host->second.since < task.op) {
      read.host = host->second.counts.get();
    }
  }
  writes.reserve(op.writes.size());
  for (const TensorView& view : op.writes) {
    Operand& written = writes.emplace_back(viewed(view, task.copy));
    written.first_column = view.first_column;
    written.num_columns = view.num_columns;
  }
  if (std::holds_alternative<CommOp>(op.body)) {
    const CollectiveContext context{.plan = plan_,
                                    .op = op,
                                    .rank = rank_.rank(),
                                    .reads = reads,
                                    .writes = writes,
                                    .group = communicators_.group(plan_, op),
                                    .resources = rank_.resources(op.stream),
                                    .kernel_resources = rank_.resources(0),
                                    .sides = {sides_, &side_layout_, task},
                                    .team = team_,
                                    .tables = tables_of(task),
                                    .kv = rank_.kv(),
                                    .kv_layer = kv_layer(task),
                                    .move = moves_.moves[static_cast<std::size_t>(task.op)],
                                    .even = &even_.moves};
    is_own_all_reduce_[static_cast<std::size_t>(task.op)] = is_own_all_reduce(context);
    return bind_collective(context);
  }
  if (std::holds_alternative<HostOp>(op.body)) return bind_host(op);
  return bind_kernel(task, reads, writes);
}

// Host ops are what a step costs the host: here they happen by themselves, but for those that read
// counts.
Launch RankStep::bind_host(const Op& op) {
  if (std::get<HostOp>(op.body).kind != HostKind::kD2hSync || op.reads.empty()) {
    return [](const cuda::Stream&) {};
  }
  struct Copy {
    std::int32_t* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Copy> copies;
  for (const TensorId id : op.reads) {
    const Operand counts = operand(id, 0);
    if (counts.data == nullptr) {
      throw std::invalid_argument("\"" + counts.tensor->name + "\" is not on the rank");
    }
    copies.push_back({.to = host_copies_.at(id).counts.get(),
                      .from = counts.data,
                      .bytes = static_cast<std::size_t>(bytes_in(*counts.tensor))});
  }
  return [this, copies = std::move(copies)](const cuda::Stream& stream) {
    for (const Copy& copy : copies) {
      ORRERY_CUDA(
          cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToHost, stream.get()));
    }
    // Nodes are counted with the counts of the step before.
    if (counts_nodes_) return;
    counts_read_.record(stream);
    rank_.watch().waiting(rank_.rank());
    team_.wait(counts_read_);
  };
}

Launch RankStep::bind_kernel(const Task& task, std::span<const Operand> reads,
                             std::span<const Operand> writes) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  const auto& kernel = std::get<KernelOp>(op.body);
  const GpuKernel* const gpu = find_gpu_kernel(kernel.kernel);
  if (gpu == nullptr) {
    throw std::invalid_argument("kernel \"" + kernel.kernel + "\" cannot be executed");
  }
  const Part& part = parts_[static_cast<std::size_t>(micro_batch_of(op))];
  return gpu->bind(
      {.op = kernel,
       .spec = kernel_spec(kernel.kernel),
       .reads = reads,
       .writes = writes,
       .slots = slots_[static_cast<std::size_t>(task.op)],
       .tables = tables_of(task),
       .numbers = setup_.numbers,
       .kv = &rank_.kv(),
       .kv_layer = kv_layer(task),
       .rank_of_keys = part.share.is_ring ? rank_of_keys(plan_, setup_.grid, rank_.rank(), op) : -1,
       .resources = rank_.resources(op.stream),
       .first_expert = first_expert_of(plan_, op, rank_.first_expert()),
       .ranked_moe = communicators_.ranked_moe(plan_, op, rank_.rank()),
       .counts_are_there = counts_are_there_[current_]});
}

}  // namespace orrery
