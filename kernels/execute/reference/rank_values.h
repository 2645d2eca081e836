#pragma once

// The tensors of a plan on all its ranks while it runs: what ops have written, weights, which are
// drawn when they are first read, and caches.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/binding/kernel_call.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/model_setup.h"
#include "kernels/execute/weights.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

// What one rank keeps from step to step.
struct KeptByRank {
  std::map<std::pair<std::string, std::int64_t>, Values> weights;  // by name, copy
  std::vector<KvLayer> kv;
};

class RankValues {
 public:
  // All arguments are to outlive it. Inputs are zeros until something else is written.
  RankValues(const ModelSetup& setup, const Plan& plan, std::vector<KeptByRank>& kept);

  [[nodiscard]] const Tensor& tensor(TensorId id) const;

  // What a tensor has on a rank; empty: nothing has been written.
  [[nodiscard]] const Values& now(TensorId id, int rank) const;
  // The same for an op that reads it. Throws std::invalid_argument, naming the op, where it is
  // empty.
  [[nodiscard]] const Values& written(const Op& op, TensorId id, int rank) const;
  // Likewise, or the weight that it is, of one copy of a repeat.
  const Values& operand(const Op& op, TensorId id, int rank, std::int64_t copy);

  // Rows of `all`, or columns of what was written.
  [[nodiscard]] Values rows_of_view(const Values& all, const TensorView& view) const;
  [[nodiscard]] Values columns_of_view(const Op& op, const TensorView& view, int rank) const;

  // Rounded as its format is. Of a view of rows the others stay as they are, zeros at first.
  void write(TensorId id, int rank, Values result);
  void write_view(const TensorView& view, int rank, Values result);

  // A weight that is not brought together from shards of several ranks.
  [[nodiscard]] bool is_kept_weight(TensorId id) const;
  // Experts of all ranks of an op in their order, where one kernel reaches those of others.
  Values weight_of_ranks(const Op& op, TensorId id, std::int64_t copy);

  KvLayer* kv_layer(TensorId id, int rank, std::int64_t copy);

 private:
  const Values& weight(TensorId id, int rank, std::int64_t copy);
  [[nodiscard]] std::int64_t row_size(TensorId id) const;

  const ModelSetup& setup_;
  const Plan& plan_;
  std::vector<KeptByRank>& kept_;         // by rank
  std::vector<WeightShards> shards_;      // by rank
  std::vector<KvLayers> kv_;              // by rank
  std::vector<std::vector<Values>> now_;  // by rank and tensor
  std::vector<std::int64_t> copies_;      // by tensor
  std::vector<bool> is_gathered_;         // by tensor, of weights
};

}  // namespace orrery::reference
