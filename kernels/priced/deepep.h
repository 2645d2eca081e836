#pragma once

// Dims and work of DeepEP's kernels (github.com/deepseek-ai/DeepEP), which bring rows to experts on
// other GPUs and back.

#include <string_view>
#include <vector>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {

inline std::vector<DimSpec> deepep_dims() {
  return {{.name = "tokens", .meaning = "tokens of this rank"},
          {.name = "hidden", .meaning = "columns of the residual stream"},
          {.name = "topk", .meaning = "experts per token"},
          {.name = "ranks", .meaning = "GPUs that share the experts, eight to a node"},
          {.name = "low_latency",
           .meaning = "1: of the kernels for few tokens, which send a row for each expert",
           .may_be_zero = true}};
}

// A row for each expert of each token; what leaves a node once for several of them is in the rows.
inline Bytes deepep_bytes(const Dims& dims, double element) {
  return Bytes(size(dims, "tokens") * size(dims, "topk") * size(dims, "hidden") * element);
}

// SMs of the kernels for prompts: Buffer.num_sms of DeepEP. Those for few tokens leave transfers to
// the NIC and give their SMs back until these are done ("hook-based overlapping" in its README).
inline double deepep_blocks(DType /*dtype*/, const Dims& dims) {
  return size(dims, "low_latency") > 0 ? 0 : 20;
}

// A NIC of 400 Gbit/s as a share of an H100's HBM rate. Floor: 8 GPUs of a node, one token. Between
// nodes four tables and the report's own figures agree to some 10 %.
inline Prior deepep_prior() {
  return {.arithmetic = Arithmetic::kRows,
          .flops = 0.6,
          .hbm = 0.015,
          .floor = us(13),
          .spread = 0.15,
          .grid = {.axes = {"ranks", "tokens"}},
          .blocks = deepep_blocks};
}

}  // namespace orrery
