#include "kernels/execute/reference/step_collectives.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/execute/context_share.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/collective_call.h"
#include "kernels/execute/reference/context_part.h"
#include "kernels/execute/side_rows.h"
#include "sim/plan/sides.h"

namespace orrery::reference {
namespace {

void write_all(const StepState& state, const Op& op, TensorId id, std::vector<Values> outputs) {
  const auto ranks = state.plan.ranks(op.ranks);
  for (std::size_t at = 0; at < ranks.size(); ++at) {
    state.values.write(id, ranks[at], std::move(outputs[at]));
  }
}

// Rows from the ranks' own to even parts of all, or back.
void move_rows(const StepState& state, const Op& op, RowMove move) {
  const bool is_gather = move == RowMove::kToOwn;
  for (std::size_t i = 0; i < (is_gather ? op.reads.size() : 1); ++i) {
    std::vector<Values> inputs;
    for (const int rank : state.plan.ranks(op.ranks)) {
      inputs.push_back(is_gather ? state.values.columns_of_view(op, op.reads[i], rank) : Values());
      // Attention of prompts, then of decodes, are rows one behind the other.
      for (std::size_t part = 0; !is_gather && part < op.reads.size(); ++part) {
        const Values rows = state.values.columns_of_view(op, op.reads[part], rank);
        inputs.back().insert(inputs.back().end(), rows.begin(), rows.end());
      }
    }
    const auto& axes = state.values.tensor(op.writes[i]).axes;
    write_all(state, op, op.writes[i],
              state.rows.even().moved(move, inputs, axes.back().size, axes.front().size));
  }
}

void gather_decodes(const StepState& state, const Op& op) {
  const RankValues& values = state.values;
  for (std::size_t i = 0; i < op.writes.size(); ++i) {
    const Tensor& gathered = values.tensor(op.writes[i]);
    Values all;
    for (const int rank : state.plan.ranks(op.ranks)) {
      const Values own =
          own_decodes(gathered, state.setup.grid.cp, values.written(op, op.reads[i], rank),
                      op.reads[i], values.tensor(op.reads[i]).axes.back().size);
      all.insert(all.end(), own.begin(), own.end());
    }
    for (const int rank : state.plan.ranks(op.ranks)) {
      state.values.write(op.writes[i], rank, Values(all));
    }
  }
}

void gather_latents(const StepState& state, const Op& op, const KvLayer& all) {
  const RankValues& values = state.values;
  for (const int rank : state.plan.ranks(op.ranks)) {
    std::vector<Values> latents =
        latents_of(all, state.setup.block_size, state.rows.of_sequences(op, rank).prefill,
                   {&values.tensor(op.writes[0]), &values.tensor(op.writes[1])});
    for (std::size_t i = 0; i < 2; ++i) {
      state.values.write(op.writes[i], rank, std::move(latents[i]));
    }
  }
}

// Parts of the cache that context-parallel ranks have stored.
void gather_cache(const StepState& state, const Op& op, std::int64_t copy) {
  const auto ranks = state.plan.ranks(op.ranks);
  std::vector<const KvLayer*> shards;
  for (const int rank : ranks) {
    shards.push_back(state.values.kv_layer(op.reads.front(), rank, copy));
  }
  if (op.writes.size() == 2) return gather_latents(state, op, joined(shards));
  const bool swaps = std::get<CommOp>(op.body).kind == CollectiveKind::kSendRecv;
  for (std::size_t at = 0; at < ranks.size(); ++at) {
    state.values.write(op.writes.front(), ranks[at],
                       packed(swaps ? *shards[1 - at] : joined(shards)));
  }
}

// Rows of prompts, or heads, between context-parallel ranks.
void exchange_context(const StepState& state, const Op& op) {
  std::vector<const PartRows*> rows;
  for (const int rank : state.plan.ranks(op.ranks)) {
    rows.push_back(&state.rows.of_context_part(op, rank));
  }
  for (std::size_t i = 0; i < op.writes.size(); ++i) {
    std::vector<Values> inputs;
    for (const int rank : state.plan.ranks(op.ranks)) {
      inputs.push_back(state.values.written(op, op.reads[i], rank));
    }
    write_all(state, op, op.writes[i], exchanged(state.plan, op, i, inputs, rows));
  }
}

// What context-parallel ranks exchange; false where the op is none of that.
bool run_context_comm(const StepState& state, const Op& op, std::int64_t copy) {
  if (state.values.tensor(op.reads.front()).role == TensorRole::kKvCache) {
    gather_cache(state, op, copy);
  } else if (gathers_decodes(state.plan, op)) {
    gather_decodes(state, op);
  } else if (moves_context(state.plan, op)) {
    exchange_context(state, op);
  } else {
    return false;
  }
  return true;
}

std::vector<int> ranks_of_ffn(const RankGrid& grid, int instance) {
  std::vector<int> ranks(static_cast<std::size_t>(grid.ffn_tp));
  std::iota(ranks.begin(), ranks.end(), grid.dp * grid.tp + instance * grid.ffn_tp);
  return ranks;
}
// Of place `t` in each tensor-parallel group.
std::vector<int> ranks_of_attention(const RankGrid& grid, int t) {
  std::vector<int> ranks(static_cast<std::size_t>(grid.dp));
  std::ranges::generate(ranks, [&, d = 0]() mutable { return d++ * grid.tp + t; });
  return ranks;
}

// Adds what `sides` give each other of tensor `i` to what their receivers have.
void add_rows(const StepState& state, const Op& op, std::size_t i, const Sides& sides,
              std::map<int, Values>& received) {
  const RankValues& values = state.values;
  const std::int64_t columns = values.tensor(op.writes[i]).axes.back().size;
  const std::int64_t num_sent = num_elements(values.tensor(op.reads[i])) / columns;
  const std::int64_t num_received = num_elements(values.tensor(op.writes[i])) / columns;
  for (const int rank : sides.receivers) {
    for (const PeerRows& rows : side_rows(sides, rank, num_sent, num_received)) {
      const Values& from = values.written(op, op.reads[i], rows.peer);
      const std::int64_t first = first_on_peer(sides, rank, rows.peer, num_sent, num_received);
      const auto begin = received.at(rank).begin() + rows.first * columns;
      std::transform(begin, begin + rows.count * columns, from.begin() + first * columns, begin,
                     std::plus<>());
    }
  }
}

// Rows between attention and FFN ranks. Each FFN instance gets those of all data-parallel ranks,
// dealt out as side_rows() says; what comes back is added up over the instances.
void run_exchange(const StepState& state, const Op& op, const Sides& sides) {
  const RankGrid& grid = state.setup.grid;
  const bool is_to_ffn = sides.senders.front() < sides.receivers.front();
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const auto count = static_cast<std::size_t>(num_elements(state.values.tensor(op.writes[i])));
    std::map<int, Values> received;
    for (const int rank : sides.receivers) received[rank].assign(count, 0);
    for (int instance = 0; instance < grid.ffn_instances; ++instance) {
      const std::vector<int> ffn = ranks_of_ffn(grid, instance);
      for (int t = 0; t < grid.tp; ++t) {
        if (is_to_ffn) {  // the ranks of a tensor-parallel group have the same rows
          if (t == 0) add_rows(state, op, i, {ranks_of_attention(grid, t), ffn}, received);
        } else {
          add_rows(state, op, i, {ffn, ranks_of_attention(grid, t)}, received);
        }
      }
    }
    for (auto& [rank, values] : received) state.values.write(op.writes[i], rank, std::move(values));
  }
}

// Between two stages, from the one that has what is read.
void send(const StepState& state, const Op& op) {
  const auto ranks = state.plan.ranks(op.ranks);
  const bool forward = state.plan.contains(state.values.tensor(op.reads.front()).ranks, ranks[0]);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    state.values.write(op.writes[i], ranks[forward ? 1 : 0],
                       state.values.written(op, op.reads[i], ranks[forward ? 0 : 1]));
  }
}

// A collective among ranks that have equal parts.
class EqualRanks {
 public:
  EqualRanks(const StepState& state, const Op& op, std::int64_t copy)
      : state_(state),
        op_(op),
        ranks_(state.plan.ranks(op.ranks)),
        kind_(std::get<CommOp>(op.body).kind),
        copy_(copy),
        gathers_sampled_(gathers_sampled(state.plan, op)) {}

  void run() {
    if (kind_ == CollectiveKind::kAllToAll && op_.reads.size() == 3 && op_.writes.size() == 1) {
      const TensorId output = op_.writes[0];
      write_all(state_, op_, output,
                all_to_all_v(printed_name(op_), tensor(output), sent(op_.reads[0], output),
                             of_ranks(op_.reads[1]), of_ranks(op_.reads[2])));
      return;
    }
    // Counts behind the one tensor say how many rows matter: all are moved.
    for (std::size_t i = 0; i < op_.writes.size(); ++i) {
      const Tensor& output = tensor(op_.writes[i]);
      Tensor input = tensor(op_.reads.at(i));
      if (gathers_sampled_) {
        input.axes.front().size = output.axes.front().size / std::ssize(ranks_);
      }
      const std::vector<Values> inputs = sent(op_.reads[i], op_.writes[i]);
      if (sends_slice(state_.plan, kind_, input, output)) input.axes.back() = output.axes.back();
      write_all(state_, op_, op_.writes[i],
                run_collective(printed_name(op_), kind_, input, output, inputs));
    }
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const { return state_.values.tensor(id); }

  [[nodiscard]] Values sampled(TensorId id, int rank) const {
    const Values& rows = state_.values.written(op_, id, rank);
    const std::int64_t columns = tensor(id).axes.back().size;
    Values picked;
    for (const std::int64_t row : state_.rows.of_sequences(op_, rank).sampled) {
      picked.insert(picked.end(), rows.begin() + row * columns, rows.begin() + (row + 1) * columns);
    }
    return picked;
  }
  [[nodiscard]] std::vector<Values> of_ranks(TensorId id) const {
    std::vector<Values> all;
    for (const int rank : ranks_) {
      all.push_back(gathers_sampled_ ? sampled(id, rank)
                                     : state_.values.operand(op_, id, rank, copy_));
    }
    return all;
  }
  // all_gather and all_to_all of which the output's columns are split and the input's not send the
  // rank's own.
  [[nodiscard]] std::vector<Values> sent(TensorId id, TensorId output) const {
    std::vector<Values> all = of_ranks(id);
    if (!sends_slice(state_.plan, kind_, tensor(id), tensor(output))) return all;
    const Axis& columns = tensor(output).axes.back();
    for (std::size_t at = 0; at < all.size(); ++at) {
      all[at] = column_slice(all[at], tensor(id).axes.back().size, columns.size,
                             first_on(state_.plan, columns, ranks_[at]));
    }
    return all;
  }

  const StepState& state_;
  const Op& op_;
  std::span<const int> ranks_;
  CollectiveKind kind_;
  std::int64_t copy_;
  bool gathers_sampled_;
};

}  // namespace

void run_comm(const StepState& state, const Op& op, std::int64_t copy) {
  if (state.setup.grid.cp > 1 && run_context_comm(state, op, copy)) return;
  const RowMove move = state.rows.move_of(op);
  if (move != RowMove::kNone) return move_rows(state, op, move);
  if (const auto sides = sides_of(state.plan, op)) return run_exchange(state, op, *sides);
  if (std::get<CommOp>(op.body).kind == CollectiveKind::kSendRecv) return send(state, op);
  EqualRanks(state, op, copy).run();
}

}  // namespace orrery::reference
