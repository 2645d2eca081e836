#pragma once

// What the works of several kernels share: bytes per element by operand, and the pairs of a causal
// mask. Works count the least that must be computed and moved: each input read once, each output
// written once, intermediates of a fused kernel never.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sim/plan/plan.h"

namespace orrery {

inline double size(const Dims& dims, std::string_view name) {
  return static_cast<double>(dim(dims, name));
}

// Weights of a linear layer in `format`.
inline double weight_bytes(DType format) { return bytes_per_element(format); }

// Activations entering a linear layer of that format. Block-scaled fp8 has a float for 128 elements
// of a token (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); mxfp4 and int4 are weight-only.
inline double activation_bytes(DType format) {
  switch (format) {
    case DType::kFp8Block:
      return 1 + 4.0 / 128;
    case DType::kMxfp4:
    case DType::kInt4:
      return bytes_per_element(DType::kBf16);
    default:
      return bytes_per_element(format);
  }
}

// Results of a linear layer or attention: bf16, unless all is fp32.
inline double result_bytes(DType format) {
  return bytes_per_element(format == DType::kFp32 ? DType::kFp32 : DType::kBf16);
}

// Keys seen by `query` new tokens of one sequence after `context` cached ones, each new token
// seeing itself and what is before it, at most `window` keys: the sum over i = 1..query of
// min(context + i, window).
inline double causal_pairs(double query, double context, double window) {
  const double unclipped = std::clamp(window - context, 0.0, query);
  return unclipped * context + unclipped * (unclipped + 1) / 2 + (query - unclipped) * window;
}

// Keys that at least one of those tokens sees.
inline double causal_keys(double query, double context, double window) {
  return std::min(context + query, window + query - 1);
}

// Of a kernel that deals all its work to its blocks: KernelSpec::rounds.
inline int one_round(DType /*dtype*/, const Dims& /*dims*/) { return 1; }

// Of a kernel for prompts with tiles of so many queries of a head.
inline int prefill_rounds(const Dims& dims, std::int64_t tile_rows) {
  constexpr std::int64_t kNumSms = 132;
  const std::int64_t query = (dim(dims, "query") + tile_rows - 1) / tile_rows;
  const std::int64_t tiles = dim(dims, "batch") * query * dim(dims, "heads");
  return static_cast<int>((tiles + kNumSms - 1) / kNumSms);
}

constexpr Seconds us(double value) { return Seconds(value * 1e-6); }

inline void require(bool holds, std::string_view what) {
  if (!holds) throw std::invalid_argument("expected " + std::string(what));
}

}  // namespace orrery
