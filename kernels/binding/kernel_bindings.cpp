#include <algorithm>
#include <array>

#include "kernels/binding/kernel_binding.h"
#include "kernels/kernel_list.h"

namespace orrery {

#define ORRERY_NOTHING(name)
#define ORRERY_DECLARE_BIND(name, ...) Launch bind_##name(const BindContext& context);
ORRERY_KERNELS(ORRERY_DECLARE_BIND, ORRERY_NOTHING)
#undef ORRERY_DECLARE_BIND

std::span<const KernelBinding> kernel_bindings() {
#define ORRERY_BINDING(name, ...) KernelBinding{.kernel = #name, .bind = bind_##name},
  static constexpr std::array kBindings{ORRERY_KERNELS(ORRERY_BINDING, ORRERY_NOTHING)};
#undef ORRERY_BINDING
#undef ORRERY_NOTHING
  return kBindings;
}

const KernelBinding* find_kernel_binding(std::string_view kernel) {
  const auto bindings = kernel_bindings();
  const auto found = std::ranges::find(bindings, kernel, &KernelBinding::kernel);
  return found == bindings.end() ? nullptr : &*found;
}

}  // namespace orrery
