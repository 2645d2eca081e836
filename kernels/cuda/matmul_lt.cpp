#include "kernels/cuda/matmul_lt.h"

#include <cublasLt.h>

#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusString(status));
  }
}
#define ORRERY_CUBLAS(call) check((call), #call)

template <typename Handle, auto destroy>
struct Destroy {
  void operator()(Handle handle) const { static_cast<void>(destroy(handle)); }
};
template <typename Handle, auto destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
using LtHandle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// cuBLASLt is column-major: a row-major [rows, columns] is its [columns, rows].
Layout row_major(std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  ORRERY_CUBLAS(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF,
                                           static_cast<std::uint64_t>(columns),
                                           static_cast<std::uint64_t>(rows), columns));
  return Layout(layout);
}

}  // namespace

struct MatmulLt::Plan {
  LtHandle handle;
  Description description;
  Layout x;
  Layout w;
  Layout y;
  cublasLtMatmulAlgo_t algorithm{};
  cuda::DeviceBuffer<unsigned char> workspace{kWorkspaceBytes};
};

MatmulLt::MatmulLt(std::int64_t m, std::int64_t n, std::int64_t k, int sms)
    : plan_(std::make_unique<Plan>()) {
  cublasLtHandle_t handle = nullptr;
  ORRERY_CUBLAS(cublasLtCreate(&handle));
  plan_->handle.reset(handle);
  cublasLtMatmulDesc_t description = nullptr;
  ORRERY_CUBLAS(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan_->description.reset(description);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  ORRERY_CUBLAS(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA,
                                               &transposed, sizeof(transposed)));
  if (sms > 0) {
    const std::int32_t target = sms;
    ORRERY_CUBLAS(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                                 &target, sizeof(target)));
  }
  plan_->w = row_major(n, k);
  plan_->x = row_major(m, k);
  plan_->y = row_major(m, n);
  cublasLtMatmulPreference_t preference_handle = nullptr;
  ORRERY_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_handle));
  const Preference preference(preference_handle);
  ORRERY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(),
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  ORRERY_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle, description, plan_->w.get(), plan_->x.get(),
                                               plan_->y.get(), plan_->y.get(), preference.get(), 1,
                                               &found, &count));
  if (count == 0) throw std::runtime_error("cuBLASLt has no algorithm for this GEMM");
  plan_->algorithm = found.algo;
}

MatmulLt::~MatmulLt() = default;
MatmulLt::MatmulLt(MatmulLt&&) noexcept = default;
MatmulLt& MatmulLt::operator=(MatmulLt&&) noexcept = default;

void MatmulLt::launch(const cuda::Stream& stream, bf16* y, const bf16* x, const bf16* w) const {
  const float one = 1;
  const float zero = 0;
  ORRERY_CUBLAS(cublasLtMatmul(plan_->handle.get(), plan_->description.get(), &one, w,
                               plan_->w.get(), x, plan_->x.get(), &zero, y, plan_->y.get(), y,
                               plan_->y.get(), &plan_->algorithm, plan_->workspace.get(),
                               kWorkspaceBytes, stream.get()));
}

}  // namespace orrery
