#include "kernels/execute/reference/model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/dense/quantize/reference.h"
#include "kernels/execute/context_share.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/collective_call.h"
#include "kernels/execute/reference/context_part.h"
#include "kernels/execute/reference/even_rows.h"
#include "kernels/execute/row_moves.h"
#include "kernels/execute/side_rows.h"
#include "kernels/execute/step_tables.h"
#include "kernels/execute/weights.h"
#include "sim/plan/liveness.h"
#include "sim/plan/sides.h"

namespace orrery::reference {
namespace {

// The longest sequence of a step, which is as long as this reference lets one be.
std::int64_t longest(const StepInput& input) {
  std::int64_t length = 1;
  for (const auto* sequences : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *sequences) {
      length =
          std::max(length, sequence.context + static_cast<std::int64_t>(sequence.tokens.size()));
    }
  }
  return length;
}

}  // namespace

// One step on all ranks. Ops run in the order of the plan, each on all its ranks before the next.
class StepRun {
 public:
  StepRun(Model& model, const Plan& plan, const StepInput& input, const GivenScores& given)
      : StepRun(model, plan, given) {
    parts_ = split_step(input, setup_.grid.dp * num_micro_batches_);
    const CacheShape cache{.num_blocks = setup_.num_kv_blocks,
                           .block_size = setup_.block_size,
                           .max_model_len = longest_model_len(input)};
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      for (int micro_batch = 0; micro_batch < num_micro_batches_; ++micro_batch) {
        StepRows mine = step_rows(plan, first_stage_rank(rank), micro_batch);
        mine.seqs = step_rows(plan, last_stage_rank(rank), micro_batch).seqs;
        const StepPart& part = part_of(rank, micro_batch);
        if (setup_.grid.cp > 1) mine = rows_of_step(part, mine);
        check_part(part, mine, cache);
        rows_.push_back(part_rows(part, mine, setup_.block_size));
        if (setup_.grid.cp == 1) continue;
        parts_of_context_.push_back(rows_of_rank(rows_.back(), plan, rank, setup_.grid.cp));
        gathered_decodes_.push_back(gathered_decodes(rows_.back(), rank, setup_.grid.cp));
      }
    }
    if (moves_.has_even) find_even_rows();
  }

  // A layer by itself, whose ops look at no sequences.
  StepRun(Model& model, const Plan& plan, const LayerTensors& inputs)
      : StepRun(model, plan, GivenScores{}) {
    rows_.resize(static_cast<std::size_t>(setup_.grid.size()));
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
        const Tensor& input = plan.tensors()[i];
        if (input.role != TensorRole::kInput || !plan.contains(input.ranks, rank)) continue;
        const auto& of_rank = inputs.at(static_cast<std::size_t>(rank));
        if (!of_rank.contains(input.name)) continue;
        write(static_cast<TensorId>(i), rank, of_rank.at(input.name));
      }
    }
  }

  StepResult run() {
    const auto num_ops = static_cast<OpId>(plan_.ops().size());
    std::size_t next_repeat = 0;
    for (OpId id = 0; id < num_ops;) {
      const auto& repeats = plan_.repeats();
      if (next_repeat == repeats.size() || id < repeats[next_repeat].first) {
        run_op(id++, 0);
        continue;
      }
      const Repeat& repeat = repeats[next_repeat++];
      for (std::int64_t copy = 0; copy < repeat.count; ++copy) {
        for (OpId op = repeat.first; op < repeat.last; ++op) run_op(op, copy);
      }
      id = repeat.last;
    }
    return std::move(result_);
  }

  // What is held of outputs.
  [[nodiscard]] LayerTensors outputs() const {
    LayerTensors outputs(values_.size());
    for (std::size_t rank = 0; rank < values_.size(); ++rank) {
      for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
        const Tensor& output = plan_.tensors()[i];
        const bool is_here = plan_.contains(output.ranks, static_cast<int>(rank));
        if (output.role == TensorRole::kOutput && is_here)
          outputs[rank][output.name] = values_[rank][i];
      }
    }
    return outputs;
  }

 private:
  StepRun(Model& model, const Plan& plan, const GivenScores& given)
      : model_(model),
        setup_(model.setup_),
        plan_(plan),
        given_(given),
        num_micro_batches_(num_micro_batches(plan)) {
    for (const Op& op : plan.ops()) require_reference(op);
    moves_ = row_moves(plan);
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      shards_.push_back(weight_shards(plan, rank, setup_.numbers.routing.expert_of_slot));
      kv_.push_back(kv_layers(plan, rank));
      first_experts_.push_back(first_expert(plan, rank));
      values_.emplace_back(plan.tensors().size());
    }
    copies_ = num_copies(plan);
    is_gathered_ = gathered_weights(plan);
    zero_inputs();
  }

  // Rows of context-parallel ranks together, of whose prompts each rank's plan has a part.
  static StepRows rows_of_step(const StepPart& part, StepRows rows) {
    rows.prefill = 0;
    for (const SequenceTokens* chunk : part.prefill) rows.prefill += std::ssize(chunk->tokens);
    rows.tokens = rows.prefill + rows.decodes;
    rows.seqs = std::max(rows.seqs, std::ssize(part.sampled));  // decodes are dealt out
    return rows;
  }
  // Balanced rows of data-parallel ranks, as many as their embeddings look up.
  void find_even_rows() {
    const auto embedding = std::ranges::find_if(plan_.ops(), [](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      return kernel != nullptr && kernel->kernel == "embedding";
    });
    std::vector<const PartRows*> own;
    own.reserve(static_cast<std::size_t>(setup_.grid.dp));
    for (int i = 0; i < setup_.grid.dp; ++i) own.push_back(&rows_[slot(i * setup_.grid.tp, 0)]);
    even_ = EvenRows(std::move(own), dim(std::get<KernelOp>(embedding->body).dims, "tokens"));
    for (int i = 0; i < setup_.grid.dp; ++i) even_rows_.push_back(even_.part(i));
  }
  [[nodiscard]] std::size_t index_of(const Op& op) const {
    return static_cast<std::size_t>(&op - plan_.ops().data());
  }
  void move_rows(const Op& op, RowMove move) {
    const auto ranks = plan_.ranks(op.ranks);
    const bool is_gather = move == RowMove::kToOwn;
    for (std::size_t i = 0; i < (is_gather ? op.reads.size() : 1); ++i) {
      std::vector<Values> inputs;
      for (const int rank : ranks) {
        inputs.push_back(is_gather ? viewed(op, op.reads[i], rank) : Values());
        // Attention of prompts, then of decodes, are rows one behind the other.
        for (std::size_t part = 0; !is_gather && part < op.reads.size(); ++part) {
          const Values rows = viewed(op, op.reads[part], rank);
          inputs.back().insert(inputs.back().end(), rows.begin(), rows.end());
        }
      }
      const auto& axes = tensor(op.writes[i]).axes;
      std::vector<Values> outputs = even_.moved(move, inputs, axes.back().size, axes.front().size);
      for (std::size_t at = 0; at < ranks.size(); ++at) {
        write(op.writes[i], ranks[at], std::move(outputs[at]));
      }
    }
  }
  Values viewed(const Op& op, const TensorView& view, int rank) {
    const Values& all = values(op, view, rank);
    if (view.has_all_columns()) return all;
    return columns_of(all, tensor(view).axes.back().size, view.first_column, view.num_columns);
  }
  [[nodiscard]] const PartRows& rows_of(const Op& op, int rank) const {
    const std::size_t at = slot(rank, micro_batch_of(op));
    if (!moves_.is_on_own[index_of(op)]) {
      return even_rows_[static_cast<std::size_t>(setup_.grid.dp_rank(rank))];
    }
    if (is_on_gathered_decodes(plan_, op)) return gathered_decodes_[at];
    return setup_.grid.cp > 1 && is_on_part(plan_, op) ? parts_of_context_[at] : rows_[at];
  }
  [[nodiscard]] int stage_size() const { return setup_.grid.tp * setup_.grid.dp * setup_.grid.cp; }
  [[nodiscard]] int first_stage_rank(int rank) const { return rank % stage_size(); }
  [[nodiscard]] int last_stage_rank(int rank) const {
    return rank % stage_size() + (setup_.grid.pp - 1) * stage_size();
  }
  [[nodiscard]] std::size_t slot(int rank, int micro_batch) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  [[nodiscard]] const StepPart& part_of(int rank, int micro_batch) const {
    return parts_[slot(setup_.grid.dp_rank(rank), micro_batch)];
  }
  [[nodiscard]] std::int64_t longest_model_len(const StepInput& input) const {
    std::int64_t blocks = 0;
    for (const auto* sequences : {&input.prefill, &input.decodes}) {
      for (const SequenceTokens& sequence : *sequences) {
        blocks = std::max(blocks, std::ssize(sequence.blocks));
      }
    }
    return std::max(longest(input), blocks * setup_.block_size);
  }
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }

  void zero_inputs() {
    for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
      const Tensor& input = plan_.tensors()[i];
      if (input.role != TensorRole::kInput) continue;
      for (const int rank : plan_.ranks(input.ranks)) {
        values_[static_cast<std::size_t>(rank)][i].assign(
            static_cast<std::size_t>(num_elements(input)), 0.0);
      }
    }
  }

  void run_op(OpId id, std::int64_t copy) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      for (const int rank : plan_.ranks(op.ranks)) run_kernel_on(op, *kernel, rank, copy);
    } else if (const auto* comm = std::get_if<CommOp>(&op.body)) {
      run_comm(op, *comm, copy);
    }
  }

  std::vector<double>& values(const Op& op, TensorId id, int rank) {
    std::vector<double>& found =
        values_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)];
    if (!found.empty()) return found;
    throw std::invalid_argument("op \"" + printed_name(op) + "\" reads \"" + tensor(id).name +
                                "\", which nothing has written on rank " + std::to_string(rank));
  }
  void write(TensorId id, int rank, std::vector<double> result) {
    values_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)] =
        rounded(std::move(result), tensor(id), setup_.rounding);
  }

  [[nodiscard]] std::int64_t row_size(TensorId id) const {
    return num_elements(tensor(id)) / tensor(id).axes.front().size;
  }
  Values rows_of_view(const Values& all, const TensorView& view) const {
    const auto begin = all.begin() + view.first_row * row_size(view);
    return {begin, begin + view.num_rows * row_size(view)};
  }
  // Rows that no view has written yet are zeros.
  void write_view(const TensorView& view, int rank, Values result) {
    if (view.has_all_rows()) return write(view, rank, std::move(result));
    Values all = values_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(view.tensor)];
    all.resize(static_cast<std::size_t>(num_elements(tensor(view))));
    std::ranges::copy(result, all.begin() + view.first_row * row_size(view));
    write(view, rank, std::move(all));
  }

  const std::vector<double>& weight(TensorId id, int rank, std::int64_t copy) {
    const auto i = static_cast<std::size_t>(id);
    const WeightShards& shards = shards_[static_cast<std::size_t>(rank)];
    const WeightShard& shard = shards.shards[static_cast<std::size_t>(shards.tensor_shard[i])];
    if (copies_[i] == 1) copy = 0;
    const std::int64_t of_run = shard.first_copy + copy;
    auto& weights = model_.ranks_[static_cast<std::size_t>(rank)].weights;
    std::vector<double>& found = weights[{shard.name, of_run}];
    if (!found.empty()) return found;
    const StoredWeight stored = stored_weight(shard, copy, tensor(id).dtype, setup_.seed);
    found.assign(stored.values.begin(), stored.values.end());
    for (std::size_t at = 0; at < found.size() && !stored.scales.empty(); ++at) {
      found[at] *= stored.scales[at / static_cast<std::size_t>(shard.columns)];
    }
    return found;
  }

  [[nodiscard]] const std::vector<float>* given_scores(const Op& op, int rank,
                                                       std::int64_t copy) const {
    if (given_.empty()) return nullptr;
    const auto id = static_cast<OpId>(&op - plan_.ops().data());
    const auto& of_rank = given_.at(static_cast<std::size_t>(rank));
    const auto found = of_rank.find({id, copy});
    return found == of_rank.end() ? nullptr : &found->second;
  }

  KvLayer* kv_layer(TensorId id, int rank, std::int64_t copy) {
    const KvLayers& layers = kv_[static_cast<std::size_t>(rank)];
    std::vector<KvLayer>& kv = model_.ranks_[static_cast<std::size_t>(rank)].kv;
    if (std::ssize(kv) < layers.count) kv.resize(static_cast<std::size_t>(layers.count));
    KvLayer& layer =
        kv[static_cast<std::size_t>(layers.layer(id, static_cast<std::int32_t>(copy)))];
    if (layer.keys.empty()) {
      const Axis& width = tensor(id).axes.back();
      const bool is_latent = width.name == axis::kLatent;
      layer.keys.assign(static_cast<std::size_t>(setup_.num_kv_blocks * setup_.block_size *
                                                 width.size / (is_latent ? 1 : 2)),
                        0.0);
      if (!is_latent) layer.values = layer.keys;
      layer.has.assign(static_cast<std::size_t>(setup_.num_kv_blocks * setup_.block_size), 0.0);
    }
    return &layer;
  }

  // Of the table that an embedding reads.
  [[nodiscard]] std::int64_t first_vocab_row(const Op& op, int rank) const {
    return first_on(plan_, tensor(op.reads.back()).axes.front(), rank);
  }

  // A weight that is not brought together from shards of several ranks.
  [[nodiscard]] bool is_kept_weight(TensorId id) const {
    return tensor(id).role == TensorRole::kWeight && !is_gathered_[static_cast<std::size_t>(id)];
  }
  const std::vector<double>& operand(const Op& op, TensorId id, int rank, std::int64_t copy) {
    return is_kept_weight(id) ? weight(id, rank, copy) : values(op, id, rank);
  }

  // Experts of all ranks in their order, where one kernel reaches those of others.
  std::vector<double> weight_of_ranks(const Op& op, TensorId id, std::int64_t copy) {
    std::vector<double> joined;
    for (const int rank : plan_.ranks(op.ranks)) {
      const std::vector<double>& own = weight(id, rank, copy);
      joined.insert(joined.end(), own.begin(), own.end());
    }
    return joined;
  }
  [[nodiscard]] bool reaches_other_ranks(const Op& op, TensorId id) const {
    const auto& kernel = std::get<KernelOp>(op.body);
    return routed_role(kernel) == RoutedRole::kLayer && plan_.ranks(op.ranks).size() > 1 &&
           tensor(id).axes.front().name == axis::kExperts;
  }

  void run_kernel_on(const Op& op, const KernelOp& kernel, int rank, std::int64_t copy) {
    const int micro_batch = micro_batch_of(op);
    const PartRows& part = rows_of(op, rank);
    KernelCall call{.op = op,
                    .kernel = kernel,
                    .plan = plan_,
                    .spec = kernel_spec(kernel.kernel),
                    .slots = operand_slots(plan_, op),
                    .reads = {},
                    .written = {},
                    .part = part,
                    .block_size = setup_.block_size,
                    .first_vocab_row = kernel.kernel == "embedding" ? first_vocab_row(op, rank) : 0,
                    .rope = model_.rope_,
                    .numbers = setup_.numbers,
                    .rounding = setup_.rounding,
                    .first_expert = first_experts_[static_cast<std::size_t>(rank)],
                    .given_scores = given_scores(op, rank, copy),
                    .score_difference = &result_.score_difference};
    for (const auto* ids : {&op.reads, &op.writes}) {
      for (const TensorId id : *ids) {
        if (tensor(id).role == TensorRole::kKvCache) call.kv = kv_layer(id, rank, copy);
      }
    }
    std::vector<std::vector<double>> made;
    made.reserve(op.reads.size());  // reads point into it
    for (const TensorView& view : op.reads) {
      const TensorId id = view;
      if (is_kept_weight(id) && reaches_other_ranks(op, id)) {
        call.reads.push_back(&made.emplace_back(weight_of_ranks(op, id, copy)));
        continue;
      }
      if (!view.has_all_rows()) {
        call.reads.push_back(&made.emplace_back(rows_of_view(operand(op, id, rank, copy), view)));
        continue;
      }
      const bool is_table =
          tensor(id).role == TensorRole::kKvCache ||
          (tensor(id).role == TensorRole::kInput && tensor(id).dtype == DType::kInt32);
      call.reads.push_back(is_table ? nullptr : &operand(op, id, rank, copy));
    }
    for (const TensorId id : op.writes) {
      call.written.push_back(
          &values_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)]);
    }
    std::vector<std::vector<double>> results = run_kernel(call);
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      if (tensor(op.writes[i]).role != TensorRole::kKvCache) {
        write_view(op.writes[i], rank, std::move(results[i]));
      }
    }
    const bool is_first = setup_.grid.tp_rank(rank) == 0;
    if (kernel.kernel == "sample" && is_first) collect(op, rank, micro_batch);
  }

  // The logits and tokens of a part's sampled rows, to their places among those of the step.
  void collect(const Op& op, int rank, int micro_batch) {
    const StepPart& part = part_of(rank, micro_batch);
    const std::vector<double>& logits = values(op, op.reads.front(), rank);
    const std::vector<double>& tokens = values(op, op.writes.front(), rank);
    const auto vocab = static_cast<std::size_t>(tensor(op.reads.front()).axes.back().size);
    std::size_t num_rows = 0;
    for (const StepPart& each : parts_) num_rows += each.sampled.size();
    result_.vocab = static_cast<std::int64_t>(vocab);
    result_.logits.resize(num_rows * vocab);
    result_.next_tokens.resize(num_rows);
    for (std::size_t row = 0; row < part.sampled.size(); ++row) {
      const std::optional<std::size_t> own = sampled_row(rank, micro_batch, row);
      if (!own) continue;
      const auto place = static_cast<std::size_t>(part.sampled[row]);
      std::copy_n(logits.begin() + static_cast<std::ptrdiff_t>(*own * vocab), vocab,
                  result_.logits.begin() + static_cast<std::ptrdiff_t>(place * vocab));
      result_.next_tokens[place] = static_cast<std::int32_t>(tokens[*own]);
    }
  }

  // Where a rank has a sampled row of the step: of context-parallel ranks with the whole model one
  // has it.
  [[nodiscard]] std::optional<std::size_t> sampled_row(int rank, int micro_batch,
                                                       std::size_t sampled) const {
    const DealtDecodes dealt = dealt_decodes(plan_, rank);
    const StepPart& part = part_of(rank, micro_batch);
    const std::size_t prompts = part.sampled.size() - part.decodes.size();
    if (dealt.room > 0 && sampled >= prompts) {
      const auto decode = static_cast<std::int64_t>(sampled - prompts) - dealt.first;
      if (decode < 0 || decode >= dealt.count) return std::nullopt;
      return prompts + static_cast<std::size_t>(decode);
    }
    if (!computes(rank, micro_batch, sampled)) return std::nullopt;
    return sampled;
  }
  [[nodiscard]] bool computes(int rank, int micro_batch, std::size_t sampled) const {
    const bool has_parts = std::ranges::any_of(plan_.ops(), [&](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      return kernel != nullptr && kernel->kernel == "embedding" && is_on_part(plan_, op);
    });
    if (setup_.grid.cp == 1 || !has_parts) return true;
    const std::size_t at = slot(rank, micro_batch);
    const auto row = static_cast<std::size_t>(parts_of_context_[at].sampled[sampled]);
    return parts_of_context_[at].of_step[row] == rows_[at].sampled[sampled];
  }

  // An exchange between context-parallel ranks, of parts of the cache, of prompts or of heads;
  // false where it is none.
  bool run_context_comm(const Op& op, const CommOp& comm, std::int64_t copy) {
    const auto ranks = plan_.ranks(op.ranks);
    if (tensor(op.reads.front()).role == TensorRole::kKvCache) {
      std::vector<const KvLayer*> shards;
      for (const int rank : ranks) shards.push_back(kv_layer(op.reads.front(), rank, copy));
      if (op.writes.size() == 2) {
        gather_latents(op, joined(shards));
        return true;
      }
      const bool swaps = comm.kind == CollectiveKind::kSendRecv;
      for (std::size_t at = 0; at < ranks.size(); ++at) {
        write(op.writes.front(), ranks[at], packed(swaps ? *shards[1 - at] : joined(shards)));
      }
      return true;
    }
    if (gathers_decodes(plan_, op)) {
      gather_decodes(op);
      return true;
    }
    if (!moves_context(plan_, op)) return false;
    std::vector<const PartRows*> rows;
    for (const int rank : ranks) {
      rows.push_back(&parts_of_context_[slot(rank, micro_batch_of(op))]);
    }
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      std::vector<Values> inputs;
      for (const int rank : ranks) inputs.push_back(values(op, op.reads[i], rank));
      std::vector<Values> outputs = exchanged(plan_, op, i, inputs, rows);
      for (std::size_t at = 0; at < ranks.size(); ++at) {
        write(op.writes[i], ranks[at], std::move(outputs[at]));
      }
    }
    return true;
  }

  void gather_decodes(const Op& op) {
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      const Tensor& gathered = tensor(op.writes[i]);
      Values all;
      for (const int rank : plan_.ranks(op.ranks)) {
        const Values own = own_decodes(gathered, setup_.grid.cp, values(op, op.reads[i], rank),
                                       op.reads[i], tensor(op.reads[i]).axes.back().size);
        all.insert(all.end(), own.begin(), own.end());
      }
      for (const int rank : plan_.ranks(op.ranks)) write(op.writes[i], rank, Values(all));
    }
  }

  void gather_latents(const Op& op, const KvLayer& all) {
    for (const int rank : plan_.ranks(op.ranks)) {
      const PartRows& step = rows_[slot(rank, micro_batch_of(op))];
      std::vector<Values> latents = latents_of(all, setup_.block_size, step.prefill,
                                               {&tensor(op.writes[0]), &tensor(op.writes[1])});
      for (std::size_t i = 0; i < 2; ++i) write(op.writes[i], rank, std::move(latents[i]));
    }
  }

  // Rows between attention and FFN ranks. Each FFN instance gets those of all data-parallel ranks,
  // dealt out as side_rows() says; what comes back is added up over the instances.
  void run_exchange(const Op& op, const Sides& sides) {
    const RankGrid& grid = setup_.grid;
    const bool is_to_ffn = sides.senders.front() < sides.receivers.front();
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      const auto count = static_cast<std::size_t>(num_elements(tensor(op.writes[i])));
      std::map<int, Values> received;
      for (const int rank : sides.receivers) received[rank].assign(count, 0);
      for (int instance = 0; instance < grid.ffn_instances; ++instance) {
        const std::vector<int> ffn = ranks_of_ffn(instance);
        for (int t = 0; t < grid.tp; ++t) {
          if (is_to_ffn) {  // the ranks of a tensor-parallel group have the same rows
            if (t == 0) add_rows(op, i, {ranks_of_attention(t), ffn}, received);
          } else {
            add_rows(op, i, {ffn, ranks_of_attention(t)}, received);
          }
        }
      }
      for (auto& [rank, values] : received) write(op.writes[i], rank, std::move(values));
    }
  }

  [[nodiscard]] std::vector<int> ranks_of_ffn(int instance) const {
    const RankGrid& grid = setup_.grid;
    std::vector<int> ranks(static_cast<std::size_t>(grid.ffn_tp));
    std::iota(ranks.begin(), ranks.end(), grid.dp * grid.tp + instance * grid.ffn_tp);
    return ranks;
  }
  // Of place `t` in each tensor-parallel group.
  [[nodiscard]] std::vector<int> ranks_of_attention(int t) const {
    std::vector<int> ranks(static_cast<std::size_t>(setup_.grid.dp));
    std::ranges::generate(ranks, [&, d = 0]() mutable { return d++ * setup_.grid.tp + t; });
    return ranks;
  }

  // Adds what `sides` give each other of tensor `i` to what their receivers have.
  void add_rows(const Op& op, std::size_t i, const Sides& sides, std::map<int, Values>& received) {
    const std::int64_t columns = tensor(op.writes[i]).axes.back().size;
    const std::int64_t num_sent = num_elements(tensor(op.reads[i])) / columns;
    const std::int64_t num_received = num_elements(tensor(op.writes[i])) / columns;
    for (const int rank : sides.receivers) {
      for (const PeerRows& rows : side_rows(sides, rank, num_sent, num_received)) {
        const Values& from = values(op, op.reads[i], rows.peer);
        const std::int64_t first = first_on_peer(sides, rank, rows.peer, num_sent, num_received);
        const auto begin = received.at(rank).begin() + rows.first * columns;
        std::transform(begin, begin + rows.count * columns, from.begin() + first * columns, begin,
                       std::plus<>());
      }
    }
  }

  Values sampled(const Op& op, TensorId id, int rank) {
    const Values& rows = values(op, id, rank);
    const std::int64_t columns = tensor(id).axes.back().size;
    Values picked;
    for (const std::int64_t row : rows_[slot(rank, micro_batch_of(op))].sampled) {
      picked.insert(picked.end(), rows.begin() + row * columns, rows.begin() + (row + 1) * columns);
    }
    return picked;
  }

  void run_comm(const Op& op, const CommOp& comm, std::int64_t copy) {
    if (setup_.grid.cp > 1 && run_context_comm(op, comm, copy)) return;
    const RowMove move = moves_.moves[index_of(op)];
    if (move != RowMove::kNone) return move_rows(op, move);
    if (const auto sides = sides_of(plan_, op)) return run_exchange(op, *sides);
    const auto ranks = plan_.ranks(op.ranks);
    if (comm.kind == CollectiveKind::kSendRecv) {
      const bool forward = plan_.contains(tensor(op.reads.front()).ranks, ranks[0]);
      for (std::size_t i = 0; i < op.reads.size(); ++i) {
        write(op.writes[i], ranks[forward ? 1 : 0],
              values(op, op.reads[i], ranks[forward ? 0 : 1]));
      }
      return;
    }
    const auto of_ranks = [&](TensorId id) {
      std::vector<std::vector<double>> all;
      for (const int rank : ranks) {
        all.push_back(gathers_sampled(plan_, op) ? sampled(op, id, rank)
                                                 : operand(op, id, rank, copy));
      }
      return all;
    };
    // all_gather and all_to_all of which the output's columns are split and the input's not send
    // the rank's own.
    const auto sent = [&](TensorId id, TensorId output) {
      std::vector<std::vector<double>> all = of_ranks(id);
      if (!sends_slice(plan_, comm.kind, tensor(id), tensor(output))) return all;
      const Axis& columns = tensor(output).axes.back();
      for (std::size_t at = 0; at < all.size(); ++at) {
        all[at] = column_slice(all[at], tensor(id).axes.back().size, columns.size,
                               first_on(plan_, columns, ranks[at]));
      }
      return all;
    };
    if (comm.kind == CollectiveKind::kAllToAll && op.reads.size() == 3 && op.writes.size() == 1) {
      const TensorId output = op.writes[0];
      auto outputs = all_to_all_v(printed_name(op), tensor(output), sent(op.reads[0], output),
                                  of_ranks(op.reads[1]), of_ranks(op.reads[2]));
      for (std::size_t at = 0; at < ranks.size(); ++at) {
        write(output, ranks[at], std::move(outputs[at]));
      }
      return;
    }
    // Counts behind the one tensor say how many rows matter: all are moved.
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      Tensor input = tensor(op.reads.at(i));
      if (gathers_sampled(plan_, op)) {
        input.axes.front().size = tensor(op.writes[i]).axes.front().size / std::ssize(ranks);
      }
      const auto inputs = sent(op.reads[i], op.writes[i]);
      if (sends_slice(plan_, comm.kind, input, tensor(op.writes[i]))) {
        input.axes.back() = tensor(op.writes[i]).axes.back();
      }
      auto outputs =
          run_collective(printed_name(op), comm.kind, input, tensor(op.writes[i]), inputs);
      for (std::size_t at = 0; at < ranks.size(); ++at) {
        write(op.writes[i], ranks[at], std::move(outputs[at]));
      }
    }
  }

  Model& model_;
  const ModelSetup& setup_;
  const Plan& plan_;
  GivenScores given_;
  int num_micro_batches_;
  std::vector<StepPart> parts_;
  std::vector<WeightShards> shards_;                      // by rank
  std::vector<KvLayers> kv_;                              // by rank
  std::vector<std::int64_t> first_experts_;               // by rank
  std::vector<std::vector<std::vector<double>>> values_;  // by rank and tensor
  std::vector<PartRows> rows_;                            // by rank and micro-batch
  std::vector<PartRows> parts_of_context_;                // likewise, of a mesh with cp
  std::vector<PartRows> gathered_decodes_;                // likewise
  RowMoves moves_;
  EvenRows even_;
  std::vector<PartRows> even_rows_;  // by data-parallel rank
  std::vector<std::int64_t> copies_;
  std::vector<bool> is_gathered_;  // by tensor, of weights
  StepResult result_;
};

Model::Model(ModelSetup setup)
    : setup_(std::move(setup)),
      rope_(rope_tables(static_cast<std::size_t>(setup_.numbers.max_positions),
                        static_cast<std::size_t>(setup_.numbers.head_dim),
                        setup_.numbers.rope_theta)),
      ranks_(static_cast<std::size_t>(setup_.grid.size())) {}

StepResult Model::run(const Plan& plan, const StepInput& input, const GivenScores& given) {
  return StepRun(*this, plan, input, given).run();
}

LayerTensors Model::run_layer(const Plan& plan, const LayerTensors& inputs) {
  StepRun run(*this, plan, inputs);
  static_cast<void>(run.run());
  return run.outputs();
}

}  // namespace orrery::reference
