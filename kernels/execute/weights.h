#pragma once

// Random weights that are the same however a model is split: each element is a function of the
// seed, the weight's name in the unsplit plan, the layer and its row and column there
// (weight_value.h). No CUDA but for fill_weight.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

namespace cuda {
class Stream;
}

// A weight of one rank as a part of the whole model's: rows are all axes but the last, columns the
// last; a vector is one row. What no range holds is zero: padding rows (a vocabulary that does not
// divide), and a bias that is added to a sum over ranks, on all of them but the first.
struct WeightShard {
  std::string name;             // in the plan of one rank: "layers.0.qkv_proj.weight"
  std::int64_t first_copy = 0;  // of this rank's copy 0 among all copies (pipeline stages)
  std::int64_t num_copies = 1;  // on this rank
  std::int64_t rows = 0;        // local
  std::int64_t columns = 0;
  std::int64_t whole_rows = 0;
  std::int64_t whole_columns = 0;
  std::vector<AxisRange> row_ranges;
  std::vector<AxisRange> column_ranges;
  double bound = 0;      // elements are uniform in [-bound, bound]; gains of norms: see below
  bool is_gain = false;  // 1 + uniform in [-bound, bound]
  bool operator==(const WeightShard&) const = default;
};

// One shard for each weight tensor that `rank` holds, as the splits of its axes say:
// tensor_shard[tensor id] is an index or -1. bound = sqrt(3 / columns of the whole), so that a
// linear layer keeps the variance of its input; 0.1 for gains, 0.005 for what is added to scores of
// experts to choose among them, 4 sqrt(3) and more for the embedding of a mixture of experts, so
// that tokens choose different ones. Slots of experts hold those of `expert_of_slot`
// (Routing::expert_of_slot), copies the same values. Throws std::invalid_argument for a rank that
// the plan has not, and, naming the weight, where a split is not known or slots are not the plan's.
struct WeightShards {
  std::vector<WeightShard> shards;
  std::vector<std::int32_t> tensor_shard;
};
WeightShards weight_shards(const Plan& plan, int rank,
                           std::span<const std::int32_t> expert_of_slot = {});

// What a rank keeps, by name: all copies together, whichever tensors of a plan have them (halves
// that take turns rotate a run of layers, which then has its first copy, those between and its last
// in three), so that one executor runs plans that cut a run differently. Throws as weight_shards
// and, naming it, for a weight that is of several shapes or formats, or lacks copies between
// others.
struct KeptWeight {
  WeightShard shard;
  DType dtype = DType::kBf16;
};
std::map<std::string, KeptWeight> kept_weights(const Plan& plan, int rank,
                                               std::span<const std::int32_t> expert_of_slot = {});

// Which copy of `kept` is copy `copy` of a plan's tensor, which has `copies`. Throws
// std::invalid_argument, naming it, where it is none of them.
std::int64_t kept_copy(const KeptWeight& kept, const Tensor& tensor, std::int64_t copies,
                       std::int64_t copy);

// The first expert of `rank`; 0 without experts. Throws as Plan::ranges_of.
std::int64_t first_expert(const Plan& plan, int rank);

// Throws std::invalid_argument for a format in which no weight is stored.
void require_stored_dtype(const WeightShard& shard, DType dtype);

// Copy `copy` (of this rank, from 0) as it is stored, on the host.
struct StoredWeight {
  std::vector<float> values;  // [rows, columns], rounded to the format
  std::vector<float> scales;  // fp8: [rows], an element is value times scale; else empty
};
// Throws std::invalid_argument for a dtype other than bf16, fp32 and fp8 (one scale for each row).
StoredWeight stored_weight(const WeightShard& shard, std::int64_t copy, DType dtype,
                           std::uint64_t seed);

// The same into device memory `data` [rows, columns], and for fp8 `scales` [rows], ordered by the
// stream. Throws as stored_weight, cuda::Error when a launch fails.
void fill_weight(const cuda::Stream& stream, const WeightShard& shard, std::int64_t copy,
                 DType dtype, void* data, float* scales, std::uint64_t seed);

}  // namespace orrery
