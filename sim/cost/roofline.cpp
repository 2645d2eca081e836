#include "sim/cost/roofline.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace orrery {

DType arithmetic_dtype(const KernelSpec& spec, DType dtype) {
  const bool is_of_dtype = spec.prior.arithmetic == Arithmetic::kGemm ||
                           spec.prior.composite == Composite::kAttentionModule;
  if (is_of_dtype && (dtype == DType::kFp8 || dtype == DType::kFp8Block)) {
    return DType::kFp8;
  }
  return is_of_dtype && (dtype == DType::kInt8 || dtype == DType::kNvfp4) ? dtype : DType::kBf16;
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
  constexpr double kCarried = 0.6;  // compute efficiency of the priors of measured kernels
  constexpr double kUnitsAlone = 0.92;
  if (device.num_sms == 0 || measured_on.num_sms == 0) {
    return 1;
  }
  const double per_sm = peak / measured_peak * measured_on.num_sms / device.num_sms;
  const double of_units = 1 / kUnitsAlone;
  return (1 / kCarried) / (of_units + (1 / kCarried - of_units) * std::min(per_sm, 1.0));
}

Seconds work_model_time(const Prior& prior, const Work& work, FlopsPerSecond peak,
                        BytesPerSecond hbm_bandwidth, const LaunchWork& launch) {
  const Seconds computing = work.flops / (peak * prior.flops) * launch.computed;
  const Seconds moving = moved(work) / (hbm_bandwidth * prior.hbm) * launch.moved;
  const Seconds beside = work.links + launch.beside.value_or(prior.floor);
  if (launch.overlap == 1) return computing + moving + beside;
  const double p = launch.overlap;
  const double sum = std::pow(computing.value(), p) + std::pow(moving.value(), p);
  return Seconds(std::pow(sum, 1 / p)) + beside;
}

}  // namespace orrery
