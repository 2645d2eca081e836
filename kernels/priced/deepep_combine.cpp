#include "kernels/priced/deepep.h"

namespace orrery {
namespace {

Work work(DType dtype, const Dims& dims) { return deepep_work(dims, bytes_per_element(dtype)); }

}  // namespace

KernelSpec deepep_combine_spec() {
  return {.name = "deepep_combine",
          .summary = "sends results back to the GPUs of their tokens and adds them up",
          .dims = deepep_dims(),
          .slots = {{.name = "x", .axes = ".., hidden"},
                    {.name = "y", .axes = ".., hidden", .is_result = true}},
          .work = work,
          .prior = deepep_prior(),
          .instead = "expected expert_comm: all_to_all"};
}

}  // namespace orrery
