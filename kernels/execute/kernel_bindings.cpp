#include <algorithm>
#include <array>

#include "kernels/execute/kernel_binding.h"

namespace orrery {

// The table of kernels that can be executed; KERNEL(name) stands for bind_name() in
// kernels/<name>/bind.cpp.
#define ORRERY_KERNEL_BINDINGS(KERNEL) \
  KERNEL(gemm)                         \
  KERNEL(grouped_gemm)                 \
  KERNEL(grouped_gemm_scatter)         \
  KERNEL(quantize)                     \
  KERNEL(attention_prefill)            \
  KERNEL(attention_decode)             \
  KERNEL(rms_norm)                     \
  KERNEL(add_rms_norm)                 \
  KERNEL(rope)                         \
  KERNEL(kv_append)                    \
  KERNEL(kv_gather)                    \
  KERNEL(mla_prefill)                  \
  KERNEL(mla_decode)                   \
  KERNEL(silu_mul)                     \
  KERNEL(residual_add)                 \
  KERNEL(embedding)                    \
  KERNEL(batched_gemm)                 \
  KERNEL(gather_mul)                   \
  KERNEL(scatter_add)                  \
  KERNEL(combine_shuffling)            \
  KERNEL(split_shuffling)              \
  KERNEL(expert_gather)                \
  KERNEL(expert_gemm)                  \
  KERNEL(sample)                       \
  KERNEL(routing_scores)               \
  KERNEL(index_shuffling)

#define ORRERY_DECLARE_BIND(name) Launch bind_##name(const BindContext& context);
ORRERY_KERNEL_BINDINGS(ORRERY_DECLARE_BIND)
#undef ORRERY_DECLARE_BIND

std::span<const KernelBinding> kernel_bindings() {
#define ORRERY_BINDING(name) KernelBinding{.kernel = #name, .bind = bind_##name},
  static constexpr std::array kBindings{ORRERY_KERNEL_BINDINGS(ORRERY_BINDING)};
#undef ORRERY_BINDING
  return kBindings;
}

const KernelBinding* find_kernel_binding(std::string_view kernel) {
  const auto bindings = kernel_bindings();
  const auto found = std::ranges::find(bindings, kernel, &KernelBinding::kernel);
  return found == bindings.end() ? nullptr : &*found;
}

}  // namespace orrery
