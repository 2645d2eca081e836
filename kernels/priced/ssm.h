#pragma once

// Dims, slots and work of Mamba-2's selective scan (Dao, Gu, arXiv 2405.21060), which prompts
// compute in chunks of tokens and decodes token by token. A head keeps a matrix S of
// [state_dim, head_dim], which a token with decay a, step d, input x and vectors B and C of its
// group changes:
//
//   S = a S + d B x^T,    result: S^T C.

#include <string_view>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {

// A product with the decay, what is added and S^T C, for each element of S. S is fp32 or bf16
// (dtype), all else bf16.
inline Work ssm_work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "sequences") * size(dims, "query");
  const double heads = size(dims, "ssm_heads");
  const double values = heads * size(dims, "head_size");
  const double groups = size(dims, "groups") * size(dims, "state_dim");
  const double state = values * size(dims, "state_dim");
  const double states = size(dims, "sequences") * state * bytes_per_element(dtype);
  const double row = bytes_per_element(DType::kBf16);
  require(dim(dims, "ssm_heads") % dim(dims, "groups") == 0, "ssm_heads a multiple of groups");
  return {.flops = Flops(5 * tokens * state),
          .bytes_read = Bytes(states + tokens * (2 * groups + values + heads) * row),
          .bytes_written = Bytes(states + tokens * values * row)};
}

inline KernelSpec ssm_spec(std::string_view name, std::string_view summary, const Prior& prior) {
  return {.name = name,
          .summary = summary,
          .dims = {{.name = "sequences", .meaning = "sequences"},
                   {.name = "query", .meaning = "new tokens of each"},
                   {.name = "groups", .meaning = "of heads that share B and C, on this rank"},
                   {.name = "ssm_heads", .meaning = "heads on this rank"},
                   {.name = "state_dim", .meaning = "elements of B or C"},
                   {.name = "head_size", .meaning = "elements of a head"}},
          .slots = {{.name = "xbc", .axes = ".., ..", .type = SlotType::kBf16},
                    {.name = "dt", .axes = ".., ..", .type = SlotType::kBf16},
                    {.name = "decay",
                     .axes = "3*ssm_heads",
                     .type = SlotType::kFp32,
                     .use = Use::kWeight},
                    {.name = "state", .axes = ".., ..", .use = Use::kCache},
                    {.name = "out",
                     .axes = ".., ssm_heads*head_size",
                     .type = SlotType::kBf16,
                     .is_result = true},
                    {.name = "new_state",
                     .axes = ".., ..",
                     .use = Use::kCache,
                     .is_result = true,
                     .may_alias = "state"}},
          .work = ssm_work,
          .prior = prior};
}

}  // namespace orrery
