#include "sim/cost/clock.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/kernel_spec.h"
#include "sim/cost/roofline.h"

namespace orrery {
namespace {

// Of the data sheet's rates, what large calls reach at the full clock (8,192^3; attention over
// 8,192 tokens; a copy of 2 GiB): topologies/devices/h200-sxm/power_limit.csv.
constexpr double kProductRate = 0.80;
constexpr double kNarrowProductRate = 0.73;
constexpr double kAttentionRate = 0.62;
constexpr double kStreamRate = 0.89;
// Attention alone draws less than between products: rows of long calls took this at the limit.
constexpr double kAttentionAlone = 1.13;
// Calls of attention that take so long lower the clock as far as products do, whatever rest they
// were timed after: mla_prefill.csv, 128 heads over 12,288 tokens and more at 1,260 to 1,410 MHz.
constexpr Seconds kLongAttention{10e-3};
// How fast a call goes over from waiting for bytes to waiting for arithmetic: weights [8,192,
// 24,576] by 64, 128, 256 and 512 rows took 1.003, 1.05, 1.15 and 1.165 times as long at the limit.
constexpr double kSharpness = 4;
// Draw of a stream against that of large products. Both at once draw less than their sum: with 1.5
// in the exponent the products of 128 rows draw as much as large ones and those of 64 less.
constexpr double kStreamDraw = 0.75;
// A cache being attended draws 578 W more than idle units do, element-wise kernels that stream as
// much 504 W: columns power_w of attention_decode.csv and add_rms_norm.csv.
constexpr double kAttendedDraw = kStreamDraw * 578 / 504;
constexpr double kDrawExponent = 1.5;

enum class Kind { kProduct, kAttention, kOther };

Kind kind_of(std::string_view kernel) {
  if (kernel.starts_with("attention") || kernel.starts_with("mla")) return Kind::kAttention;
  if (kernel.ends_with("gemm") || kernel.starts_with("grouped_gemm") || kernel == "moe") {
    return Kind::kProduct;
  }
  return Kind::kOther;
}

// What grouped products compute of what they need to: where groups have more rows than the
// streaming kernel takes they go in tiles, of which a group leaves some 32 rows empty (widths in
// steps of 32, one or two tiles a group: kernels/experts/grouped_gemm/turned_sm90.cuh; which kernel
// takes a group: kernels/experts/grouped_gemm/choice.cpp), and these draw as much.
double padding(const KernelOp& op) {
  constexpr std::int64_t kStreamedRows = 54;
  constexpr double kEmptyRows = 32;
  if (!op.kernel.starts_with("grouped_gemm")) return 1;
  const std::int64_t rows = dim(op.dims, "rows");
  const std::int64_t active = dim(op.dims, "active");
  if (rows <= kStreamedRows * active) return 1;
  return 1 + kEmptyRows * static_cast<double>(active) / static_cast<double>(rows);
}

// What a call needs at the data sheet's rates.
struct Needs {
  Seconds computing;
  Seconds moving;
};

Needs needs_of(const Device& device, const KernelOp& op) {
  const Work work = work_of(op);
  return {.computing =
              padding(op) * work.flops / peak_flops(device, arithmetic_dtype(op.kernel, op.dtype)),
          .moving = (work.bytes_read + work.bytes_written) / device.hbm_bandwidth};
}

bool is_narrow(const KernelOp& op) { return arithmetic_dtype(op.kernel, op.dtype) != DType::kBf16; }

double product_rate(const KernelOp& op) {
  if (kind_of(op.kernel) == Kind::kAttention) return kAttentionRate;
  return is_narrow(op) ? kNarrowProductRate : kProductRate;
}

// What a call takes more at the limit, of its time at the full clock.
double longer(Seconds time, const PowerLimit& limit, const Needs& needs, const KernelOp& op) {
  if (!(needs.computing + needs.moving > Seconds(0))) return 0;
  switch (kind_of(op.kernel)) {
    case Kind::kProduct: {
      const double computing = std::pow(needs.computing.value() / product_rate(op), kSharpness);
      const double moving = std::pow(needs.moving.value() / kStreamRate, kSharpness);
      return ((is_narrow(op) ? limit.narrow_product : limit.product) - 1) * computing /
             (computing + moving);
    }
    case Kind::kAttention:
      return (limit.attention - 1) * (needs.computing / (needs.computing + needs.moving));
    case Kind::kOther:
      return (limit.attention - 1) * std::max(0.0, 1 - needs.moving / (time * kStreamRate));
  }
  return 0;
}

// Part of its time that a call counts as arithmetic.
double arithmetic_part(Seconds full, const Needs& needs, const KernelOp& op) {
  if (kind_of(op.kernel) == Kind::kOther) return 0;
  const double computing = needs.computing / (full * product_rate(op));
  const double of_stream = kind_of(op.kernel) == Kind::kAttention ? kAttendedDraw : kStreamDraw;
  const double moving = of_stream * (needs.moving / (full * kStreamRate));
  const double draw = std::pow(std::pow(computing, kDrawExponent) + std::pow(moving, kDrawExponent),
                               1 / kDrawExponent);
  return std::clamp((draw - kStreamDraw) / (1 - kStreamDraw), 0.0, 1.0);
}

}  // namespace

Seconds at_clock(Seconds time, const PowerLimit& limit, PowerState state, const Device& device,
                 const KernelOp& op) {
  if (!limit.acts() || !(time > Seconds(0))) {
    return time;
  }
  const Needs needs = needs_of(device, op);
  const double more = longer(time, limit, needs, op);
  const double more_alone = kind_of(op.kernel) == Kind::kAttention && limit.attention > 1
                                ? more * (kAttentionAlone - 1) / (limit.attention - 1)
                                : more;
  const double measured_at_limit =
      limit.limited_rows > limit.full_rows
          ? std::clamp((time - limit.full_rows) / (limit.limited_rows - limit.full_rows), 0.0, 1.0)
          : 0;
  const bool lowers_its_clock = kind_of(op.kernel) == Kind::kAttention && time > kLongAttention;
  const Seconds full = time / (1 + (lowers_its_clock ? more : more_alone * measured_at_limit));
  switch (state) {
    case PowerState::kFull:
      return full;
    case PowerState::kLimited:
      return full * (1 + more);
    case PowerState::kArithmetic:
      return full * (1 + arithmetic_part(full, needs, op));
  }
  return time;
}

}  // namespace orrery
