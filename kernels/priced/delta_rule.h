#pragma once

// Dims, slots and work of the gated delta rule (Yang, Kautz, Hatamizadeh, arXiv 2412.06464), which
// prompts compute in chunks of tokens and decodes token by token. A value head keeps a matrix S of
// [key_head_dim, value_head_dim], which a token with gate a, strength b, key k and value v changes:
//
//   S = a S + b k (v - a S^T k)^T,    result: S^T q.

#include <string_view>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {

// Two products and sums for each element of S: S^T k, what is added, S^T q. The decay and the norms
// of q and k count nothing. S is fp32 (dtype), all else bf16.
inline Work delta_rule_work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "sequences") * size(dims, "query");
  const double value_heads = size(dims, "value_heads");
  const double values = value_heads * size(dims, "value_head_dim");
  const double keys = size(dims, "key_heads") * size(dims, "key_head_dim");
  const double state = values * size(dims, "key_head_dim");
  const double states = size(dims, "sequences") * state * bytes_per_element(dtype);
  const double row = bytes_per_element(DType::kBf16);
  require(dim(dims, "value_heads") % dim(dims, "key_heads") == 0,
          "value_heads a multiple of key_heads");
  return {.flops = Flops(6 * tokens * state),
          .bytes_read = Bytes(states + tokens * (2 * keys + values + 2 * value_heads) * row),
          .bytes_written = Bytes(states + tokens * values * row)};
}

inline KernelSpec delta_rule_spec(std::string_view name, std::string_view summary,
                                  const Prior& prior) {
  return {.name = name,
          .summary = summary,
          .dims = {{.name = "sequences", .meaning = "sequences"},
                   {.name = "query", .meaning = "new tokens of each"},
                   {.name = "key_heads", .meaning = "heads of queries and keys on this rank"},
                   {.name = "value_heads", .meaning = "heads of values on this rank"},
                   {.name = "key_head_dim", .meaning = "elements of a query or key"},
                   {.name = "value_head_dim", .meaning = "elements of a value"}},
          .slots = {{.name = "qkv", .axes = ".., ..", .type = SlotType::kBf16},
                    {.name = "gates", .axes = ".., 2*value_heads", .type = SlotType::kBf16},
                    {.name = "decay",
                     .axes = "2*value_heads",
                     .type = SlotType::kFp32,
                     .use = Use::kWeight},
                    {.name = "state", .axes = ".., ..", .use = Use::kCache},
                    {.name = "out",
                     .axes = ".., value_heads*value_head_dim",
                     .type = SlotType::kBf16,
                     .is_result = true},
                    {.name = "new_state",
                     .axes = ".., ..",
                     .use = Use::kCache,
                     .is_result = true,
                     .may_alias = "state"}},
          .work = delta_rule_work,
          .prior = prior};
}

}  // namespace orrery
