#include "kernels/execute/reference/kernel_call.h"

#include <algorithm>
#include <stdexcept>
#include <variant>

namespace orrery::reference {
namespace {

const KernelReference* find_reference(std::string_view kernel) {
  const auto all = kernel_references();
  const auto found = std::ranges::find(all, kernel, &KernelReference::kernel);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

void require_reference(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr || find_reference(kernel->kernel) != nullptr) return;
  throw std::invalid_argument("op \"" + printed_name(op) + "\": kernel " + kernel->kernel +
                              " has no reference that runs plans");
}

Results run_kernel(const KernelCall& call) {
  require_reference(call.op);
  return find_reference(call.kernel.kernel)->run(call);
}

}  // namespace orrery::reference
