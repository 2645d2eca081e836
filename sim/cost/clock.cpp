#include "sim/cost/clock.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_spec.h"
#include "sim/cost/roofline.h"

namespace orrery {
namespace {

// Of the data sheet's rates, what large calls reach at the full clock (8,192^3; attention over
// 8,192 tokens; a copy of 2 GiB): topologies/devices/h200-sxm/power_limit.csv.
constexpr double kGemmRate = 0.80;
constexpr double kNarrowGemmRate = 0.73;
constexpr double kAttentionRate = 0.62;
constexpr double kStreamRate = 0.89;
// Attention alone draws less than between GEMMs: rows of long calls took this at the limit.
constexpr double kAttentionAlone = 1.13;
// Calls of attention that take so long lower the clock as far as GEMMs do, whatever rest they were
// timed after: mla_prefill.csv, 128 heads over 12,288 tokens and more at 1,260 to 1,410 MHz.
constexpr Seconds kLongAttention{10e-3};
// How fast a call goes over from waiting for bytes to waiting for arithmetic: weights [8,192,
// 24,576] by 64, 128, 256 and 512 rows took 1.003, 1.05, 1.15 and 1.165 times as long at the limit.
constexpr double kSharpness = 4;
// Draw of a stream against that of large GEMMs. Both at once draw less than their sum: with 1.5 in
// the exponent the GEMMs of 128 rows draw as much as large ones and those of 64 less.
constexpr double kStreamDraw = 0.75;
// A cache being attended draws 578 W more than idle units do, element-wise kernels that stream as
// much 504 W: columns power_w of attention_decode.csv and add_rms_norm.csv.
constexpr double kAttendedDraw = kStreamDraw * 578 / 504;
constexpr double kDrawExponent = 1.5;

// Rows of repeated calls are the median of graphs: so many calls ran just before (time_layers in
// kernels/experts/fused_moe/ranks.cpp). After 75 ms of such the clock was still full, after 250 at
// the limit: of Qwen3-30B-A3B's layer rows of 783 us took 887 in a step and rows of 2.59 ms 2.64
// (one H200, 2026-11-29; after 85 ms the layer of 64 experts took 890 us, after rests 800 to 818).
// Chosen on these three; part of the first may be uneven experts.
constexpr double kRepeatedBefore = 96;
constexpr Seconds kFallBegins{75e-3};
constexpr Seconds kFallEnds{95e-3};

double padding(const KernelSpec& spec, const KernelOp& op) {
  return spec.prior.padding == nullptr ? 1 : spec.prior.padding(op.dtype, op.dims);
}

// A call and what it needs at the data sheet's rates.
struct Call {
  const KernelSpec& spec;
  const KernelOp& op;
  Seconds computing;
  Seconds moving;

  [[nodiscard]] bool is(Arithmetic arithmetic) const { return spec.prior.arithmetic == arithmetic; }
  [[nodiscard]] bool is_narrow() const { return arithmetic_dtype(spec, op.dtype) != DType::kBf16; }
  // Of the data sheet's rate, what large calls compute at.
  [[nodiscard]] double rate() const {
    if (is(Arithmetic::kAttention)) return kAttentionRate;
    return is_narrow() ? kNarrowGemmRate : kGemmRate;
  }
};

Call call_of(const Device& device, const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  const Work work = work_of(op);
  return {.spec = spec,
          .op = op,
          .computing =
              padding(spec, op) * work.flops / peak_flops(device, arithmetic_dtype(spec, op.dtype)),
          .moving = (work.bytes_read + work.bytes_written) / device.hbm_bandwidth};
}

// What a call takes more at the limit, of its time at the full clock.
double longer(Seconds time, const PowerLimit& limit, const Call& call) {
  if (!(call.computing + call.moving > Seconds(0))) return 0;
  switch (call.spec.prior.arithmetic) {
    case Arithmetic::kGemm: {
      const double computing = std::pow(call.computing.value() / call.rate(), kSharpness);
      const double moving = std::pow(call.moving.value() / kStreamRate, kSharpness);
      return ((call.is_narrow() ? limit.narrow_gemm : limit.gemm) - 1) * computing /
             (computing + moving);
    }
    case Arithmetic::kAttention:
      return (limit.attention - 1) * (call.computing / (call.computing + call.moving));
    case Arithmetic::kRows:
      return (limit.attention - 1) * std::max(0.0, 1 - call.moving / (time * kStreamRate));
  }
  return 0;
}

// Part of its time that a call counts as arithmetic.
double arithmetic_part(Seconds full, const Call& call) {
  if (call.is(Arithmetic::kRows)) return 0;
  const double computing = call.computing / (full * call.rate());
  const double of_stream = call.is(Arithmetic::kAttention) ? kAttendedDraw : kStreamDraw;
  const double moving = of_stream * (call.moving / (full * kStreamRate));
  const double draw = std::pow(std::pow(computing, kDrawExponent) + std::pow(moving, kDrawExponent),
                               1 / kDrawExponent);
  return std::clamp((draw - kStreamDraw) / (1 - kStreamDraw), 0.0, 1.0);
}

// Of a row, how far the clock had fallen when it was timed.
double part_at_limit(Seconds time, const PowerLimit& limit, RowClocks rows) {
  const auto between = [](Seconds value, Seconds begin, Seconds end) {
    return end > begin ? std::clamp((value - begin) / (end - begin), 0.0, 1.0) : 0;
  };
  switch (rows) {
    case RowClocks::kByLength:
      return between(time, limit.full_rows, limit.limited_rows);
    case RowClocks::kRepeated:
      return between(kRepeatedBefore * time, kFallBegins, kFallEnds);
    default:
      return 0;
  }
}

}  // namespace

ClockTimes at_clocks(Seconds time, const PowerLimit& limit, const Device& device,
                     const KernelOp& op, RowClocks rows) {
  if (!limit.acts() || !(time > Seconds(0))) {
    return {.full = time, .limited = time, .arithmetic = Seconds(0)};
  }
  const Call call = call_of(device, op);
  const double more = longer(time, limit, call);
  const double more_alone = call.is(Arithmetic::kAttention) && limit.attention > 1
                                ? more * (kAttentionAlone - 1) / (limit.attention - 1)
                                : more;
  const double measured_at_limit = part_at_limit(time, limit, rows);
  const bool lowers_its_clock = call.is(Arithmetic::kAttention) && time > kLongAttention;
  const Seconds full = time / (1 + (lowers_its_clock ? more : more_alone * measured_at_limit));
  // Repeated calls that found the clock fallen draw what lowers it all the way.
  const double repeated =
      rows == RowClocks::kRepeated ? measured_at_limit * (limit.share + kClockTransition) : 0;
  return {.full = full,
          .limited = full * (1 + more),
          .arithmetic = full * std::max(arithmetic_part(full, call), std::min(repeated, 1.0))};
}

}  // namespace orrery
