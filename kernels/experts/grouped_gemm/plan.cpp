#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm/streamed.h"
#include "kernels/experts/grouped_gemm/tiled.h"

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
  const ScatterTarget& scatter = operands.scatter;
  const bool adds = scatter.out != nullptr;
  if (!is_aligned(operands.x) || !is_aligned(operands.w) ||
      !is_aligned(adds ? scatter.out : operands.y) || operands.counts == nullptr) {
    throw std::invalid_argument(
        "grouped_gemm: x, w and y or out must be 16-byte aligned, and none of them or counts null");
  }
  if (adds && shape_.dtype == DType::kFp16) {
    throw std::invalid_argument("grouped_gemm: adding rows to those of tokens takes bf16 and fp8");
  }
  constexpr std::int64_t kVector = 8;
  if (adds && (shape_.n % kVector != 0 || scatter.row_token == nullptr)) {
    throw std::invalid_argument(
        "grouped_gemm: adding rows to those of tokens takes n=" + std::to_string(kVector) +
        " times a whole number, not " + std::to_string(shape_.n) + ", and row_token");
  }
  if (shape_.dtype == DType::kFp8 && (operands.x_scale == nullptr || operands.w_scale == nullptr)) {
    throw std::invalid_argument("grouped_gemm: fp8 needs the scales of x and w");
  }
  if (const auto* const tile = std::get_if<TiledChoice>(&choice_)) {
    return grouped_gemm_tiled(
        stream, shape_, *tile, operands,
        {.programmatic = options_.programmatic, .free_sms = options_.free_sms});
  }
  grouped_gemm_streamed(stream, shape_, std::get<StreamedTile>(choice_), operands,
                        own_workspace_ ? own_workspace_->get() : options_.workspace,
                        {.programmatic = options_.programmatic,
                         .overlap = options_.overlap,
                         .free_sms = options_.free_sms});
}

}  // namespace orrery
