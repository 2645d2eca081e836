#include "kernels/dense/gemm/cublas_lt.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/dense/batched_gemm/batched_gemm.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {
namespace {

constexpr std::uint32_t kAlignment = 16;  // bytes

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("batched_gemm: " + what);
}

void require_shape(const BatchedGemmShape& shape) {
  require(shape.batch >= 1 && shape.k >= 1 && shape.m >= 0 && shape.n >= 0,
          "takes a batch and k of at least 1, m and n of at least 0");
  constexpr std::int64_t kElements = 8;  // that are aligned
  require(
      shape.n % kElements == 0 && shape.k % kElements == 0 && shape.x_head_stride % kElements == 0,
      "n, k and x_head_stride must be multiples of 8, not " + std::to_string(shape.n) + ", " +
          std::to_string(shape.k) + " and " + std::to_string(shape.x_head_stride));
  require(!shape.is_by_matrix || shape.x_head_stride == 0, "matrices have no x_head_stride");
  require(shape.x_head_stride == 0 || shape.x_head_stride >= shape.k,
          "heads of " + std::to_string(shape.k) + " elements " +
              std::to_string(shape.x_head_stride) + " apart");
  require(shape.dtype == DType::kBf16 ||
              (shape.dtype == DType::kFp8 && shape.is_by_matrix && !shape.w_is_transposed),
          "takes bf16, or fp8 by matrix with weights [n, k]");
}

struct Layout {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t column_stride = 0;
  std::int64_t batch_stride = 0;
};

cublasLtMatrixLayoutOpaque_t make_layout(const Layout& layout, std::int64_t batch) {
  cublasLtMatrixLayoutOpaque_t made{};
  ORRERY_CUBLAS(cublasLtMatrixLayoutInit(&made, CUDA_R_16BF, layout.rows, layout.columns,
                                         layout.column_stride));
  const auto count = static_cast<std::int32_t>(batch);
  ORRERY_CUBLAS(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof(count)));
  ORRERY_CUBLAS(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                 &layout.batch_stride,
                                                 sizeof(layout.batch_stride)));
  return made;
}

}  // namespace

struct BatchedGemmPlan::Library {
  cublasLtMatmulDescOpaque_t matmul{};
  cublasLtMatrixLayoutOpaque_t x{};
  cublasLtMatrixLayoutOpaque_t w{};
  cublasLtMatrixLayoutOpaque_t y{};
  cublasLtMatmulHeuristicResult_t chosen{};

  explicit Library(const BatchedGemmShape& shape);
};

struct BatchedGemmPlan::Groups {
  GroupedGemmPlan gemm;
  cuda::DeviceBuffer<std::int32_t> counts;

  Groups(const BatchedGemmShape& shape, std::byte* workspace)
      : gemm({.dtype = shape.dtype,
              .max_rows = shape.batch * shape.m,
              .n = shape.n,
              .k = shape.k,
              .groups = shape.batch},
             {.rows = shape.batch * shape.m, .active = shape.batch}, {.workspace = workspace}),
        counts(static_cast<std::size_t>(shape.batch)) {
    const std::vector<std::int32_t> equal(counts.size(), static_cast<std::int32_t>(shape.m));
    const cuda::Stream stream;
    ORRERY_CUDA(cudaMemcpyAsync(counts.get(), equal.data(), equal.size() * sizeof(std::int32_t),
                                cudaMemcpyHostToDevice, stream.get()));
    stream.synchronize();
  }
};

// Column-major: y^T[n, m] = w^T x^T for each head, where a row-major matrix is its transpose.
BatchedGemmPlan::Library::Library(const BatchedGemmShape& shape) {
  ORRERY_CUBLAS(cublasLtMatmulDescInit(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t of_w = shape.w_is_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
  ORRERY_CUBLAS(
      cublasLtMatmulDescSetAttribute(&matmul, CUBLASLT_MATMUL_DESC_TRANSA, &of_w, sizeof(of_w)));
  const std::int64_t head = shape.x_head_stride == 0 ? shape.k : shape.x_head_stride;
  const std::int64_t inner = shape.w_is_transposed ? shape.n : shape.k;
  const std::int64_t outer = shape.w_is_transposed ? shape.k : shape.n;
  w = make_layout({inner, outer, inner, shape.n * shape.k}, shape.batch);
  if (shape.is_by_matrix) {
    x = make_layout({shape.k, shape.m, shape.k, shape.m * shape.k}, shape.batch);
    y = make_layout({shape.n, shape.m, shape.n, shape.m * shape.n}, shape.batch);
  } else {
    x = make_layout({shape.k, shape.m, shape.batch * head, head}, shape.batch);
    y = make_layout({shape.n, shape.m, shape.batch * shape.n, shape.n}, shape.batch);
  }
  cublasLtMatmulPreferenceOpaque_t preference{};
  ORRERY_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    ORRERY_CUBLAS(
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  int found = 0;
  ORRERY_CUBLAS(cublasLtMatmulAlgoGetHeuristic(cublas_lt_handle(), &matmul, &w, &x, &y, &y,
                                               &preference, 1, &chosen, &found));
  if (found == 0) ORRERY_CUBLAS(CUBLAS_STATUS_NOT_SUPPORTED);
}

BatchedGemmPlan::BatchedGemmPlan(const BatchedGemmShape& shape, std::byte* workspace)
    : shape_(shape), workspace_(workspace) {
  require_shape(shape);
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.dtype == DType::kFp8) {
    groups_ = std::make_unique<Groups>(shape, workspace);
    return;
  }
  library_ = std::make_unique<Library>(shape);
  const std::size_t bytes = library_->chosen.workspaceSize;
  if (bytes > 0 && workspace == nullptr) {
    own_workspace_ = std::make_unique<cuda::DeviceBuffer<std::byte>>(bytes);
    workspace_ = own_workspace_->get();
  }
  const cuda::DeviceBuffer<bf16> any(1);
  load_code([&](const cuda::Stream& stream) { launch(stream, {any.get(), any.get(), any.get()}); });
}

BatchedGemmPlan::~BatchedGemmPlan() = default;
BatchedGemmPlan::BatchedGemmPlan(BatchedGemmPlan&&) noexcept = default;
BatchedGemmPlan& BatchedGemmPlan::operator=(BatchedGemmPlan&&) noexcept = default;

void BatchedGemmPlan::launch(const cuda::Stream& stream,
                             const BatchedGemmOperands& operands) const {
  if (groups_ != nullptr) {
    groups_->gemm.launch(stream, {.x = operands.x,
                                  .w = operands.w,
                                  .counts = groups_->counts.get(),
                                  .y = operands.y,
                                  .x_scale = operands.x_scale,
                                  .w_scale = operands.w_scale});
  }
  if (library_ == nullptr) return;
  for (const void* pointer : {operands.x, operands.w, static_cast<const void*>(operands.y)}) {
    require(pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0,
            "x, w and y must be 16-byte aligned and not null");
  }
  constexpr float kOne = 1;
  constexpr float kZero = 0;
  ORRERY_CUBLAS(cublasLtMatmul(cublas_lt_handle(), &library_->matmul, &kOne, operands.w,
                               &library_->w, operands.x, &library_->x, &kZero, operands.y,
                               &library_->y, operands.y, &library_->y, &library_->chosen.algo,
                               workspace_, library_->chosen.workspaceSize, stream.get()));
}

}  // namespace orrery
