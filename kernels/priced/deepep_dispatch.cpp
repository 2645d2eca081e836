#include "kernels/priced/deepep.h"

namespace orrery {
namespace {

Work work(DType dtype, const Dims& dims) { return deepep_work(dims, activation_bytes(dtype)); }

}  // namespace

KernelSpec deepep_dispatch_spec() {
  return {.name = "deepep_dispatch",
          .summary = "sends tokens to the GPUs of their experts; dtype is their format",
          .dims = deepep_dims(),
          .slots = {{.name = "x", .axes = ".., hidden"},
                    {.name = "routing",
                     .axes = ".., 2*topk",
                     .type = SlotType::kInt32,
                     .is_optional = true},
                    {.name = "y", .axes = ".., hidden", .is_result = true}},
          .work = work,
          .prior = deepep_prior(),
          .instead = "expected expert_comm: all_to_all"};
}

}  // namespace orrery
