#include "sim/cost/roofline.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

struct Entry {
  std::string_view kernel;
  WorkModel model;
};

constexpr Seconds us(double value) { return Seconds(value * 1e-6); }

// Kernels that the shipped tables measure: the two efficiencies are those of large shapes on H200
// (0.6 of the dense peak, 0.8 of the HBM rate; cf. AIConfigurator's own factor 0.8), the floor is
// about the smallest time in the table. They only shape the interpolation. A spread is half of the
// 95th percentile of the held-out errors in docs/data.md.
//
// Element-wise kernels have no rows. Their rates are measured ones of comparable kernels, with
// sources in docs/data.md: gather 4.0 TB/s, silu_mul 4.1 TB/s and scatter 3.5 TB/s of 4.8 TB/s on
// H200; fused norm with quantisation 2.14 TB/s of 3.35 TB/s on H100 (0.64). Floor 2 us: small
// kernels in a CUDA graph take 2 to 2.5 us. Grouped top-k on H200: 4 us. For rope and sample there
// is no measurement; they are assumed to stream like silu_mul and the norm. Their spreads are
// assumptions.
constexpr std::array kEntries = {
    Entry{"gemm", {0.6, 0.8, us(2.4), 0.05}},
    Entry{"batched_gemm", {0.6, 0.8, us(3), 0.04}},
    Entry{"attention_prefill", {0.6, 0.8, us(8), 0.06}},
    Entry{"attention_decode", {0.6, 0.8, us(8), 0.03}},
    Entry{"mla_prefill", {0.6, 0.8, us(12), 0.08}},
    Entry{"mla_decode", {0.6, 0.8, us(12), 0.06}},
    Entry{"mla_prefill_module", {0.6, 0.8, us(12), 0.04}},
    Entry{"mla_decode_module", {0.6, 0.8, us(12), 0.02}},
    Entry{"moe", {0.6, 0.8, us(12), 0.06}},
    Entry{"sparse_index", {0.6, 0.8, us(6), 0.3}},
    Entry{"quantize", {0.6, 0.64, us(2), 0.07}},
    Entry{"rms_norm", {0.6, 0.64, us(2), 0.2}},
    Entry{"add_rms_norm", {0.6, 0.64, us(2), 0.2}},
    Entry{"silu_mul", {0.6, 0.85, us(2), 0.2}},
    Entry{"residual_add", {0.6, 0.85, us(2), 0.2}},
    Entry{"rope", {0.6, 0.85, us(2), 0.3}},
    Entry{"kv_append", {0.6, 0.73, us(2), 0.2}},
    Entry{"embedding", {0.6, 0.83, us(2), 0.2}},
    Entry{"moe_route", {0.6, 0.64, us(4), 0.3}},
    Entry{"sample", {0.6, 0.64, us(2), 0.3}},
    // Routed experts as ops of their own, all measured on an H200. Grouped gemms of few rows stream
    // weights at 4.1 to 4.5 TB/s; gather 3.8, scatter 4.3, combine and split 3.6 TB/s at 16,384
    // rows. Floors are the times of one row. The router of 4,096 and more tokens is bound by its
    // few columns, the shuffle by its exchange between blocks.
    Entry{"routing_scores", {0.2, 0.75, us(3.6), 0.2}},
    Entry{"index_shuffling", {0.6, 0.64, us(4), 0.3}},
    Entry{"gather_mul", {0.6, 0.8, us(1.4), 0.1}},
    Entry{"expert_gather", {0.6, 0.8, us(1.4), 0.1}},
    Entry{"grouped_gemm", {0.75, 0.93, us(3), 0.08}},
    Entry{"grouped_gemm_scatter", {0.75, 0.93, us(3), 0.08}},
    Entry{"expert_gemm", {0.6, 0.8, us(2.4), 0.05}},
    Entry{"scatter_add", {0.6, 0.9, us(1.4), 0.1}},
    Entry{"combine_shuffling", {0.6, 0.75, us(2), 0.1}},
    Entry{"split_shuffling", {0.6, 0.75, us(2), 0.1}},
};
constexpr WorkModel kGeneral = {0.6, 0.8, us(2), 0.3};

}  // namespace

WorkModel work_model(std::string_view kernel) {
  for (const Entry& entry : kEntries) {
    if (entry.kernel == kernel) {
      return entry.model;
    }
  }
  return kGeneral;
}

DType arithmetic_dtype(std::string_view kernel, DType dtype) {
  const bool is_product = kernel == "gemm" || kernel == "batched_gemm" || kernel == "moe" ||
                          kernel == "grouped_gemm" || kernel == "grouped_gemm_scatter" ||
                          kernel == "expert_gemm" || kernel.ends_with("_module");
  if (is_product && (dtype == DType::kFp8 || dtype == DType::kFp8Block)) {
    return DType::kFp8;
  }
  return is_product && (dtype == DType::kInt8 || dtype == DType::kNvfp4) ? dtype : DType::kBf16;
}

FlopsPerSecond peak_flops(const Device& device, DType dtype) {
  const auto find = [&](DType wanted) {
    const auto found = device.dense_flops.find(wanted);
    return found == device.dense_flops.end() ? FlopsPerSecond(0) : found->second;
  };
  FlopsPerSecond peak = find(dtype);
  if (peak.value() > 0) {
    return peak;
  }
  if (dtype == DType::kBf16 || dtype == DType::kFp16) {
    peak = find(dtype == DType::kBf16 ? DType::kFp16 : DType::kBf16);
  } else if (dtype == DType::kFp8 || dtype == DType::kFp8Block) {
    peak = find(dtype == DType::kFp8 ? DType::kFp8Block : DType::kFp8);
  }
  if (peak.value() > 0) {
    return peak;
  }
  std::string known;
  for (const auto& [format, rate] : device.dense_flops) {
    known += (known.empty() ? "" : ", ") + std::string(to_text(format));
  }
  throw std::invalid_argument("device " + device.name + " does not compute in " +
                              std::string(to_text(dtype)) + "; it has " + known);
}

double efficiency_gain(const Device& device, FlopsPerSecond peak, const Device& measured_on,
                       FlopsPerSecond measured_peak) {
  constexpr double kCarried = 0.6;  // compute efficiency of the work models of measured kernels
  constexpr double kUnitsAlone = 0.92;
  if (device.num_sms == 0 || measured_on.num_sms == 0) {
    return 1;
  }
  const double per_sm = peak / measured_peak * measured_on.num_sms / device.num_sms;
  const double of_units = 1 / kUnitsAlone;
  return (1 / kCarried) / (of_units + (1 / kCarried - of_units) * std::min(per_sm, 1.0));
}

Seconds work_model_time(const WorkModel& model, const Work& work, FlopsPerSecond peak,
                        BytesPerSecond hbm_bandwidth) {
  return work.flops / (peak * model.compute_efficiency) +
         (work.bytes_read + work.bytes_written) / (hbm_bandwidth * model.bandwidth_efficiency) +
         model.floor;
}

}  // namespace orrery
