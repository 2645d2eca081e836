#include "kernels/experts/expert_gather/reference.h"

#include "kernels/binding/kernel_call.h"
#include "kernels/experts/grouped_gemm/reference.h"

namespace orrery::reference {

Results expert_gemm_reference(const KernelCall& call) {
  return with_expert_rows(call, multiplied(call), "y", size_of(call, "n"));
}

}  // namespace orrery::reference
