#include <stdexcept>

#include "kernels/dense/gemm/cublas_lt.h"
#include "kernels/dense/gemm/gemm.h"
#include "kernels/dense/gemm/streaming.h"
#include "kernels/dense/gemm/tune.h"

namespace orrery {
namespace {

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

}  // namespace

GemmPlan::GemmPlan(const GemmShape& shape, const GemmOptions& options)
    : shape_(shape), options_(options) {
  require_gemm_shape(shape);
  if (shape.m == 0 || shape.n == 0) return;
  choice_ =
      options.tune ? tuned_choice(shape, options.overlap) : choose_gemm(shape, options.overlap);
  if (choice_.tile) return;
  library_ = std::make_unique<LtGemm>(shape, options.tune ? LtGemm::kProposals : 1);
  const std::size_t bytes = library_->workspace_bytes(choice_.algorithm);
  if (bytes > 0 && options.workspace == nullptr) {
    own_workspace_ = std::make_unique<cuda::DeviceBuffer<std::byte>>(bytes);
  }
  library_->load(choice_.algorithm, own_workspace_ ? own_workspace_->get() : options.workspace);
}

GemmPlan::~GemmPlan() = default;
GemmPlan::GemmPlan(GemmPlan&&) noexcept = default;
GemmPlan& GemmPlan::operator=(GemmPlan&&) noexcept = default;

void GemmPlan::launch(const cuda::Stream& stream, const GemmOperands& operands) const {
  if (shape_.m == 0 || shape_.n == 0) return;
  if (!is_aligned(operands.x) || !is_aligned(operands.w) || !is_aligned(operands.y)) {
    throw std::invalid_argument("gemm: x, w and y must be 16-byte aligned and not null");
  }
  if (shape_.dtype == DType::kFp8 && (operands.x_scale == nullptr || operands.w_scale == nullptr)) {
    throw std::invalid_argument("gemm: fp8 needs the scales of x and w");
  }
  if (shape_.has_bias != (operands.bias != nullptr) ||
      (shape_.has_bias && !is_aligned(operands.bias))) {
    throw std::invalid_argument(
        "gemm: a bias, 16-byte aligned, where the shape has one and only there");
  }
  if (choice_.tile) {
    streaming_gemm(stream, shape_, *choice_.tile, operands, {.overlap = options_.overlap});
  } else {
    library_->launch(stream, operands, choice_.algorithm,
                     own_workspace_ ? own_workspace_->get() : options_.workspace);
  }
}

}  // namespace orrery
