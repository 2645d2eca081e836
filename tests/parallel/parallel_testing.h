// Batches, a model, a search and sums over plans that tests of several passes use.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/kernel_spec.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"
#include "tests/model/config_file.h"

namespace orrery::testing {

inline const Batch kDecode{.prefill = {}, .num_decodes = 64, .decode_context = 64'000};
inline const Batch kPrefill{
    .prefill = {{1024, 0}, {1024, 0}, {1024, 0}, {1024, 0}}, .num_decodes = 0, .decode_context = 0};

inline ModelConfig scout() {
  return testing::shipped_model("meta-llama--Llama-4-Scout-17B-16E-Instruct");
}

inline const Tensor& tensor_named(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.tensors(), name, &Tensor::name);
  if (found == plan.tensors().end()) throw std::invalid_argument("no tensor " + std::string(name));
  return *found;
}

inline const Op& op_named(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.ops(), name, &Op::name);
  if (found == plan.ops().end()) throw std::invalid_argument("no op " + std::string(name));
  return *found;
}

inline Plan placed(const ModelConfig& model, const Batch& batch, const Mesh& mesh,
                   const LoweringOptions& options = {}) {
  check_mesh(model, mesh);
  Plan plan = parallelize(lower(model, batch, options), mesh);
  verify(plan);
  EXPECT_EQ(plan.num_ranks(), num_ranks(mesh));
  return plan;
}

inline std::int64_t total_weights(const Plan& plan) {
  std::int64_t total = 0;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) total += num_weight_elements(plan, rank);
  return total;
}

// Flops of all ranks by op, repeats multiplied.
inline std::map<std::string, double> flops_by_op(const Plan& plan) {
  std::map<std::string, double> flops;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    flops[op.name] += work_of(*kernel).flops.value() *
                      static_cast<double>(plan.multiplicity(static_cast<OpId>(i)) *
                                          std::ssize(plan.ranks(op.ranks)));
  }
  return flops;
}

// Bytes per rank of all collectives of a kind that rank 0 takes part in, repeats multiplied.
inline double bytes_on_rank_0(const Plan& plan, CollectiveKind kind) {
  double bytes = 0;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || comm->kind != kind || !plan.contains(op.ranks, 0)) continue;
    bytes +=
        comm->bytes_per_rank.value() * static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
  }
  return bytes;
}

// Whether tensor-parallel ranks can share the model's heads: 28 of Qwen2.5-7B not over 8, 10 key
// heads of Phi-4 over 2 or 5, not 4.
inline bool divides_heads(const ModelConfig& model, std::int64_t tp) {
  const std::int64_t key_heads = model.num_key_value_heads;
  return model.num_attention_heads % tp == 0 &&
         (key_heads < 1 || key_heads % tp == 0 || tp % key_heads == 0);
}

inline const CommOp& comm_named(const Plan& plan, const std::string& name) {
  for (const Op& op : plan.ops()) {
    if (op.name == name) return std::get<CommOp>(op.body);
  }
  throw std::invalid_argument("no op " + name);
}

}  // namespace orrery::testing
