#include "kernels/experts/combine_shuffling/shuffle_case.h"

namespace orrery {
namespace {

constexpr const char* kName = "split_shuffling";

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return make_shuffle_case(op, options, false);
}
std::vector<KernelOp> check_ops() { return shuffle_check_ops(kName); }
std::vector<KernelOp> bench_ops() { return shuffle_bench_ops(kName); }

}  // namespace

Launch bind_split_shuffling(const BindContext& context);  // bind.cpp

GpuKernel split_shuffling_gpu() {
  return {.name = kName,
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = shuffle_grids,
          .bind = bind_split_shuffling};
}

}  // namespace orrery
