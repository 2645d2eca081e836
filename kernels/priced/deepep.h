#pragma once

// Dims and work of DeepEP's kernels (github.com/deepseek-ai/DeepEP), which bring rows to experts on
// other GPUs and back.

#include <algorithm>
#include <cmath>
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

inline constexpr double kGpusPerNode = 8;

// Rows of `element` bytes a value that the GPUs of a node send each other, at most, and those that
// leave it, experts being even over nodes: a token goes to each of its experts, or in prompts once
// to each GPU and each other node that has some of them.
struct DeepEpBytes {
  Bytes near;
  Bytes far;
};

inline DeepEpBytes deepep_bytes(const Dims& dims, double element) {
  const double ranks = std::max(1.0, size(dims, "ranks"));
  const double nodes = std::max(1.0, ranks / kGpusPerNode);
  const double in_node = std::min(ranks, kGpusPerNode);
  const double topk = size(dims, "topk");
  const Bytes row(size(dims, "tokens") * size(dims, "hidden") * element);
  if (size(dims, "low_latency") > 0) {
    return {.near = row * (topk * (in_node - 1) / in_node),
            .far = row * (topk * (ranks - in_node) / ranks)};
  }
  // Of n places the share that has at least one of a token's experts.
  const auto chosen = [&](double n) { return 1 - std::pow(1 - 1 / n, topk); };
  return {.near = row * ((ranks - 1) * chosen(ranks)), .far = row * ((nodes - 1) * chosen(nodes))};
}

// On NVLink and on a NIC of 400 Gbit/s for each GPU, at the same time. Rates, and how much later
// rows from another node are there: the tables of the low-latency kernels, 27 of whose 32 rows they
// meet within 10 % and all within 14 %.
inline Work deepep_work(const Dims& dims, double element) {
  constexpr BytesPerSecond kNvLink(280e9);
  constexpr BytesPerSecond kNic(43e9);
  constexpr Seconds kToNode = us(10);
  // Between one node and two no table has rows; there it grows with the share of the second.
  const double second_node = std::clamp(size(dims, "ranks") / kGpusPerNode - 1, 0.0, 1.0);
  const DeepEpBytes bytes = deepep_bytes(dims, element);
  const Seconds far = bytes.far / kNic + kToNode * second_node;
  const Bytes all = bytes.near + bytes.far;
  return {.flops = Flops(0),
          .bytes_read = all,
          .bytes_written = all,
          .links = std::max(bytes.near / kNvLink, far)};
}

// SMs of the kernels for prompts: Buffer.num_sms of DeepEP. Those for few tokens leave transfers to
// the NIC and give their SMs back until these are done ("hook-based overlapping" in its README).
inline double deepep_blocks(DType /*dtype*/, const Dims& dims) {
  return size(dims, "low_latency") > 0 ? kNoBlocks : 20;
}

// Floor: 8 GPUs of a node, one token. Between nodes four tables and the report's own figures agree
// to some 10 %.
inline Prior deepep_prior() {
  return {.arithmetic = Arithmetic::kRows,
          .flops = 0.6,
          .hbm = 0.8,
          .floor = us(13),
          .spread = 0.15,
          .grid = {.axes = {"ranks", "tokens"}},
          .blocks = deepep_blocks};
}

}  // namespace orrery
