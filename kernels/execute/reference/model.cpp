#include "kernels/execute/reference/model.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/kernel_call.h"
#include "kernels/execute/reference/rank_rows.h"
#include "kernels/execute/reference/step_collectives.h"

namespace orrery::reference {

// One step on all ranks. Ops run in the order of the plan, each on all its ranks before the next.
class StepRun {
 public:
  StepRun(Model& model, const Plan& plan, const StepInput& input, const GivenScores& given)
      : model_(model),
        setup_(model.setup_),
        plan_(plan),
        given_(given),
        values_(setup_, plan, model.ranks_),
        rows_(setup_, plan, input) {
    find_first_experts();
  }

  // A layer by itself.
  StepRun(Model& model, const Plan& plan, const LayerTensors& inputs)
      : model_(model),
        setup_(model.setup_),
        plan_(plan),
        values_(setup_, plan, model.ranks_),
        rows_(setup_, plan) {
    find_first_experts();
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
        const Tensor& input = plan.tensors()[i];
        if (input.role != TensorRole::kInput || !plan.contains(input.ranks, rank)) continue;
        const auto& of_rank = inputs.at(static_cast<std::size_t>(rank));
        if (!of_rank.contains(input.name)) continue;
        values_.write(static_cast<TensorId>(i), rank, of_rank.at(input.name));
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
    LayerTensors outputs(static_cast<std::size_t>(setup_.grid.size()));
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
        const Tensor& output = plan_.tensors()[i];
        if (output.role != TensorRole::kOutput || !plan_.contains(output.ranks, rank)) continue;
        outputs[static_cast<std::size_t>(rank)][output.name] =
            values_.now(static_cast<TensorId>(i), rank);
      }
    }
    return outputs;
  }

 private:
  void find_first_experts() {
    for (int rank = 0; rank < setup_.grid.size(); ++rank) {
      first_experts_.push_back(first_expert(plan_, rank));
    }
  }
  [[nodiscard]] const Tensor& tensor(TensorId id) const { return values_.tensor(id); }

  void run_op(OpId id, std::int64_t copy) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      for (const int rank : plan_.ranks(op.ranks)) run_kernel_on(op, *kernel, rank, copy);
    } else if (std::holds_alternative<CommOp>(op.body)) {
      run_comm({.setup = setup_, .plan = plan_, .rows = rows_, .values = values_}, op, copy);
    }
  }

  [[nodiscard]] const std::vector<float>* given_scores(const Op& op, int rank,
                                                       std::int64_t copy) const {
    if (given_.empty()) return nullptr;
    const auto id = static_cast<OpId>(&op - plan_.ops().data());
    const auto& of_rank = given_.at(static_cast<std::size_t>(rank));
    const auto found = of_rank.find({id, copy});
    return found == of_rank.end() ? nullptr : &found->second;
  }

  // Of the table that an embedding reads.
  [[nodiscard]] std::int64_t first_vocab_row(const Op& op, int rank) const {
    return first_on(plan_, tensor(op.reads.back()).axes.front(), rank);
  }

  [[nodiscard]] bool reaches_other_ranks(const Op& op, TensorId id) const {
    const auto& kernel = std::get<KernelOp>(op.body);
    return routed_role(kernel) == RoutedRole::kLayer && plan_.ranks(op.ranks).size() > 1 &&
           tensor(id).axes.front().name == axis::kExperts;
  }

  void run_kernel_on(const Op& op, const KernelOp& kernel, int rank, std::int64_t copy) {
    KernelCall call{.op = op,
                    .kernel = kernel,
                    .plan = plan_,
                    .spec = kernel_spec(kernel.kernel),
                    .slots = operand_slots(plan_, op),
                    .reads = {},
                    .written = {},
                    .part = rows_.of(op, rank),
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
        if (tensor(id).role == TensorRole::kKvCache) call.kv = values_.kv_layer(id, rank, copy);
      }
    }
    std::vector<Values> made;
    made.reserve(op.reads.size());  // reads point into it
    for (const TensorView& view : op.reads) {
      const TensorId id = view;
      if (values_.is_kept_weight(id) && reaches_other_ranks(op, id)) {
        call.reads.push_back(&made.emplace_back(values_.weight_of_ranks(op, id, copy)));
        continue;
      }
      if (!view.has_all_rows()) {
        const Values& all = values_.operand(op, id, rank, copy);
        call.reads.push_back(&made.emplace_back(values_.rows_of_view(all, view)));
        continue;
      }
      const bool is_table =
          tensor(id).role == TensorRole::kKvCache ||
          (tensor(id).role == TensorRole::kInput && tensor(id).dtype == DType::kInt32);
      call.reads.push_back(is_table ? nullptr : &values_.operand(op, id, rank, copy));
    }
    for (const TensorId id : op.writes) call.written.push_back(&values_.now(id, rank));
    std::vector<Values> results = run_kernel(call);
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      if (tensor(op.writes[i]).role != TensorRole::kKvCache) {
        values_.write_view(op.writes[i], rank, std::move(results[i]));
      }
    }
    const bool is_first = setup_.grid.tp_rank(rank) == 0;
    if (kernel.kernel == "sample" && is_first) collect(op, rank);
  }

  // The logits and tokens of a part's sampled rows, to their places among those of the step.
  void collect(const Op& op, int rank) {
    const int micro_batch = micro_batch_of(op);
    const StepPart& part = rows_.part(rank, micro_batch);
    const Values& logits = values_.written(op, op.reads.front(), rank);
    const Values& tokens = values_.written(op, op.writes.front(), rank);
    const auto vocab = static_cast<std::size_t>(tensor(op.reads.front()).axes.back().size);
    const std::size_t num_rows = rows_.num_sampled();
    result_.vocab = static_cast<std::int64_t>(vocab);
    result_.logits.resize(num_rows * vocab);
    result_.next_tokens.resize(num_rows);
    for (std::size_t row = 0; row < part.sampled.size(); ++row) {
      const std::optional<std::size_t> own = rows_.sampled_row(rank, micro_batch, row);
      if (!own) continue;
      const auto place = static_cast<std::size_t>(part.sampled[row]);
      std::copy_n(logits.begin() + static_cast<std::ptrdiff_t>(*own * vocab), vocab,
                  result_.logits.begin() + static_cast<std::ptrdiff_t>(place * vocab));
      result_.next_tokens[place] = static_cast<std::int32_t>(tokens[*own]);
    }
  }

  Model& model_;
  const ModelSetup& setup_;
  const Plan& plan_;
  GivenScores given_;
  RankValues values_;
  RankRows rows_;
  std::vector<std::int64_t> first_experts_;  // by rank
  StepResult result_;
};

Model::Model(ModelSetup setup)
    : setup_(std::move(setup)),
      rope_(rope_tables(static_cast<std::size_t>(setup_.numbers.max_positions),
                        static_cast<std::size_t>(setup_.numbers.head_dim),
                        setup_.numbers.rope_theta)),
      ranks_(static_cast<std::size_t>(setup_.grid.size())) {}

StepResult Model::run(const Plan& plan, const StepInput& input, const GivenScores& given) {
  for (const Op& op : plan.ops()) require_reference(op);
  return StepRun(*this, plan, input, given).run();
}

LayerTensors Model::run_layer(const Plan& plan, const LayerTensors& inputs) {
  for (const Op& op : plan.ops()) require_reference(op);
  StepRun run(*this, plan, inputs);
  static_cast<void>(run.run());
  return run.outputs();
}

}  // namespace orrery::reference
