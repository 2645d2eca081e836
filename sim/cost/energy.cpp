#include "sim/cost/energy.h"

#include <cmath>

#include "kernels/kernel_spec.h"
#include "sim/cost/roofline.h"

namespace orrery {
namespace {

constexpr double kExponent = 1.5;

}  // namespace

Joules energy_of(const BoardPower& power, const Device& device, const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  const Work work = work_of(op);
  const double padding = spec.prior.padding == nullptr ? 1 : spec.prior.padding(op.dtype, op.dims);
  const Joules hbm = power.hbm * (moved(work) / device.hbm_bandwidth);
  // Rows of norms and activations are computed outside of the tensor units, for next to nothing.
  if (spec.prior.arithmetic == Arithmetic::kRows || !(work.flops > Flops(0))) return hbm;
  const FlopsPerSecond peak = peak_flops(device, arithmetic_dtype(spec, op.dtype));
  const Joules arithmetic = power.arithmetic * (work.flops * padding / peak);
  return Joules(std::pow(std::pow(hbm.value(), kExponent) + std::pow(arithmetic.value(), kExponent),
                         1 / kExponent));
}

Joules energy_of(const BoardPower& power, const Device& device, const CommOp& op) {
  return power.hbm * (2 * op.bytes_per_rank / device.hbm_bandwidth);
}

}  // namespace orrery
