#include <algorithm>
#include <array>
#include <stdexcept>

#include "kernels/kernel_spec.h"
#include "sim/units/nearest.h"

namespace orrery {

// The table of kernels; KERNEL(name) stands for the spec defined in kernels/<name>/<name>.cpp. A
// macro, since only it can both declare name_spec() and call it.
#define ORRERY_KERNELS(KERNEL) \
  KERNEL(gemm)                 \
  KERNEL(batched_gemm)         \
  KERNEL(attention_prefill)    \
  KERNEL(attention_decode)     \
  KERNEL(mla_prefill)          \
  KERNEL(mla_decode)           \
  KERNEL(mla_prefill_module)   \
  KERNEL(mla_decode_module)    \
  KERNEL(rms_norm)             \
  KERNEL(add_rms_norm)         \
  KERNEL(rope)                 \
  KERNEL(kv_append)            \
  KERNEL(kv_gather)            \
  KERNEL(silu_mul)             \
  KERNEL(quantize)             \
  KERNEL(residual_add)         \
  KERNEL(embedding)            \
  KERNEL(moe_route)            \
  KERNEL(moe)                  \
  KERNEL(routing_scores)       \
  KERNEL(index_shuffling)      \
  KERNEL(gather_mul)           \
  KERNEL(grouped_gemm)         \
  KERNEL(grouped_gemm_scatter) \
  KERNEL(scatter_add)          \
  KERNEL(combine_shuffling)    \
  KERNEL(split_shuffling)      \
  KERNEL(expert_gemm)          \
  KERNEL(expert_gather)        \
  KERNEL(sample)               \
  KERNEL(sparse_index)

#define ORRERY_DECLARE_SPEC(name) KernelSpec name##_spec();
ORRERY_KERNELS(ORRERY_DECLARE_SPEC)
#undef ORRERY_DECLARE_SPEC

std::span<const KernelSpec> kernel_specs() {
#define ORRERY_CALL_SPEC(name) name##_spec(),
  static const std::array specs{ORRERY_KERNELS(ORRERY_CALL_SPEC)};
#undef ORRERY_CALL_SPEC
  return specs;
}

const KernelSpec* find_kernel_spec(std::string_view name) {
  const auto specs = kernel_specs();
  const auto found = std::ranges::find(specs, name, &KernelSpec::name);
  return found == specs.end() ? nullptr : &*found;
}

const KernelSpec& kernel_spec(std::string_view name) {
  if (const KernelSpec* spec = find_kernel_spec(name)) return *spec;
  std::vector<std::string_view> known;
  for (const KernelSpec& spec : kernel_specs()) known.push_back(spec.name);
  throw std::invalid_argument("unknown kernel \"" + std::string(name) + "\", nearest is \"" +
                              nearest(name, known) + "\"");
}

Work work_of(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  try {
    return spec.work(op.dtype, op.dims);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("kernel " + op.kernel + ": " + error.what());
  }
}

bool is_launched(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  return std::ranges::none_of(spec.dims, [&](const DimSpec& wanted) {
    return wanted.zero_is_not_launched && dim(op.dims, wanted.name) == 0;
  });
}

}  // namespace orrery
