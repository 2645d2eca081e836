#include <cuda_runtime_api.h>

#include <stdexcept>

#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/streamed.h"

namespace orrery {
namespace {

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

bool is_empty(const GroupedGemmShape& shape) { return shape.max_rows == 0 || shape.n == 0; }

}  // namespace

std::size_t grouped_gemm_workspace_bytes() { return streamed_workspace_bytes(); }

GroupedGemmPlan::GroupedGemmPlan(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                                 const GroupedGemmOptions& options)
    : GroupedGemmPlan(shape, choose_grouped_gemm(shape, load), options) {}

GroupedGemmPlan::GroupedGemmPlan(const GroupedGemmShape& shape, const GroupedGemmChoice& choice,
                                 const GroupedGemmOptions& options)
    : shape_(shape), options_(options), choice_(choice) {
  require_grouped_gemm_shape(shape);
  if (is_empty(shape) || options.workspace != nullptr) return;
  if (!std::holds_alternative<StreamedTile>(choice_)) return;
  own_workspace_ = std::make_unique<cuda::DeviceBuffer<std::byte>>(grouped_gemm_workspace_bytes());
  ORRERY_CUDA(cudaMemset(own_workspace_->get(), 0, own_workspace_->size()));
}

GroupedGemmPlan::~GroupedGemmPlan() = default;
GroupedGemmPlan::GroupedGemmPlan(GroupedGemmPlan&&) noexcept = default;
GroupedGemmPlan& GroupedGemmPlan::operator=(GroupedGemmPlan&&) noexcept = default;

void GroupedGemmPlan::launch(const cuda::Stream& stream,
                             const GroupedGemmOperands& operands) const {
  if (is_empty(shape_)) return;
  if (!is_aligned(operands.x) || !is_aligned(operands.w) || !is_aligned(operands.y) ||
      operands.counts == nullptr) {
    throw std::invalid_argument(
        "grouped_gemm: x, w and y must be 16-byte aligned, and none of them or counts null");
  }
  if (shape_.dtype == DType::kFp8 && (operands.x_scale == nullptr || operands.w_scale == nullptr)) {
    throw std::invalid_argument("grouped_gemm: fp8 needs the scales of x and w");
  }
  grouped_gemm_streamed(stream, shape_, std::get<StreamedTile>(choice_), operands,
                        own_workspace_ ? own_workspace_->get() : options_.workspace,
                        {.programmatic = options_.programmatic, .overlap = options_.overlap});
}

}  // namespace orrery
