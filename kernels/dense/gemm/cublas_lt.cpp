#include "kernels/dense/gemm/cublas_lt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

namespace orrery {
namespace {

int current_device() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  return device;
}

}  // namespace

cublasLtHandle_t cublas_lt_handle() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> known;
  const int device = current_device();
  const std::scoped_lock lock(mutex);
  cublasLtHandle_t& found = known[device];
  if (found == nullptr) ORRERY_CUBLAS(cublasLtCreate(&found));
  return found;
}

void load_code(const std::function<void(const cuda::Stream&)>& enqueue) {
  const cuda::Stream stream;
  // Relaxed: loading is among what a stricter capture forbids.
  ORRERY_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed));
  cudaGraph_t graph = nullptr;
  try {
    enqueue(stream);
  } catch (...) {  // the capture must end before the error leaves
    static_cast<void>(cudaStreamEndCapture(stream.get(), &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  ORRERY_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  ORRERY_CUDA(code);
  ORRERY_CUDA(cudaGraphExecDestroy(executable));
}

namespace {

template <typename T>
void set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  ORRERY_CUBLAS(cublasLtMatmulDescSetAttribute(matmul, attribute, static_cast<const void*>(&value),
                                               sizeof(value)));
}

// Operands of a launch that is not to run.
GemmOperands anywhere(bf16* at) {
  const auto* const scale = reinterpret_cast<const float*>(at);
  return {.x = at, .w = at, .y = at, .x_scale = scale, .w_scale = scale, .bias = at};
}

}  // namespace

// cuBLASLt is column-major: y^T[n, m] = w^T^T x^T, where a row-major [rows, k] is a column-major
// [k, rows]. So w is its A, transposed, and x its B: the one form it has for fp8 on Hopper.
LtGemm::LtGemm(const GemmShape& shape, int proposals)
    : is_fp8_(shape.dtype == DType::kFp8), has_bias_(shape.has_bias) {
  const cudaDataType_t type = is_fp8_ ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  ORRERY_CUBLAS(cublasLtMatmulDescInit(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(&matmul_, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (is_fp8_) {
    const auto mode = shape.scaling == Fp8Scaling::kRowwise
                          ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                          : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    set(&matmul_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(&matmul_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    // The heuristic refuses scale modes without pointers, and reads none.
    alignas(16) static constexpr float kAnyScale[4]{};
    const float* const any_scale = kAnyScale;
    set(&matmul_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, any_scale);
    set(&matmul_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, any_scale);
  }
  if (has_bias_) {  // a value for each row of y^T
    set(&matmul_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(&matmul_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    alignas(16) static constexpr std::uint16_t kAnyBias[8]{};
    const void* const any_bias = kAnyBias;
    set(&matmul_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, any_bias);
  }
  ORRERY_CUBLAS(cublasLtMatrixLayoutInit(&w_, type, shape.k, shape.n, shape.k));
  ORRERY_CUBLAS(cublasLtMatrixLayoutInit(&x_, type, shape.k, shape.m, shape.k));
  ORRERY_CUBLAS(cublasLtMatrixLayoutInit(&y_, CUDA_R_16BF, shape.n, shape.m, shape.n));
  known_ = known(shape, proposals);
  if (known_->proposals.empty()) {
    throw std::invalid_argument("cuBLASLt has no gemm for " + std::string(to_text(shape.dtype)) +
                                " m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) +
                                " k=" + std::to_string(shape.k) +
                                (is_fp8_ ? "; fp8 needs n and k to be multiples of 16" : ""));
  }
}

// Of the current device: its kinds differ in what is best.
LtGemm::Known* LtGemm::known(const GemmShape& shape, int proposals) {
  static std::mutex mutex;
  static std::map<std::tuple<int, GemmShape, int>, Known> shapes;
  const std::tuple key(current_device(), shape, proposals);
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = shapes.find(key); found != shapes.end()) return &found->second;
  }
  std::vector<Proposal> made;
  propose(proposals, 1, made);
  if (is_fp8_ && proposals > 1) propose(proposals, 0, made);
  const std::scoped_lock lock(mutex);
  const auto [entry, is_new] = shapes.try_emplace(key);
  if (is_new) {
    entry->second.is_loaded = std::vector<std::once_flag>(made.size());
    entry->second.proposals = std::move(made);
  }
  return &entry->second;
}

void LtGemm::propose(int proposals, std::int8_t fast_accumulation, std::vector<Proposal>& into) {
  if (is_fp8_) set(&matmul_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast_accumulation);
  cublasLtMatmulPreferenceOpaque_t preference{};
  ORRERY_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  ORRERY_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kGemmWorkspaceBytes, sizeof(kGemmWorkspaceBytes)));
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> results{};
  int found = 0;
  const cublasStatus_t code =
      cublasLtMatmulAlgoGetHeuristic(cublas_lt_handle(), &matmul_, &w_, &x_, &y_, &y_, &preference,
                                     std::min(proposals, kProposals), results.data(), &found);
  if (code == CUBLAS_STATUS_NOT_SUPPORTED) return;
  ORRERY_CUBLAS(code);
  for (int i = 0; i < found; ++i) into.push_back({results[i], fast_accumulation});
}

void LtGemm::load(int algorithm, void* workspace) const {
  std::call_once(known_->is_loaded[static_cast<std::size_t>(algorithm)], [&] {
    const cuda::DeviceBuffer<bf16> any(1);
    load_code([&](const cuda::Stream& stream) {
      launch(stream, anywhere(any.get()), algorithm, workspace);
    });
  });
}

void LtGemm::load_all(std::span<const LtGemm> gemms, void* workspace) {
  const cuda::DeviceBuffer<bf16> any(1);
  load_code([&](const cuda::Stream& stream) {
    for (const LtGemm& gemm : gemms) gemm.launch(stream, anywhere(any.get()), 0, workspace);
  });
  for (const LtGemm& gemm : gemms) std::call_once(gemm.known_->is_loaded.front(), [] {});
}

void LtGemm::launch(const cuda::Stream& stream, const GemmOperands& operands, int algorithm,
                    void* workspace) const {
  constexpr float kOne = 1;
  constexpr float kZero = 0;
  cublasLtMatmulDescOpaque_t matmul = matmul_;
  cublasLtMatrixLayoutOpaque_t x = x_;
  cublasLtMatrixLayoutOpaque_t w = w_;
  cublasLtMatrixLayoutOpaque_t y = y_;
  const Proposal& proposal = known_->proposals[algorithm];
  const cublasLtMatmulHeuristicResult_t& chosen = proposal.found;
  if (is_fp8_) {
    set(&matmul, CUBLASLT_MATMUL_DESC_FAST_ACCUM, proposal.fast_accumulation);
    set(&matmul, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.w_scale);
    set(&matmul, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.x_scale);
  }
  if (has_bias_) {
    const void* const bias = operands.bias;
    set(&matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  ORRERY_CUBLAS(cublasLtMatmul(cublas_lt_handle(), &matmul, &kOne, operands.w, &w, operands.x, &x,
                               &kZero, operands.y, &y, operands.y, &y, &chosen.algo, workspace,
                               chosen.workspaceSize, stream.get()));
}

void prepare_gemms(std::span<const GemmShape> shapes) {
  std::vector<GemmShape> asked;
  for (GemmShape shape : shapes) {
    for (; shape.m > 0; --shape.m) {
      if (!choose_gemm(shape, /*overlap=*/true).tile) asked.push_back(shape);
    }
  }
  constexpr std::size_t kTogether = 64;
  if (asked.empty()) return;
  const int device = current_device();
  // Whole, since the driver refuses a graph that clears more memory than is there.
  const cuda::DeviceBuffer<std::byte> any_workspace(kGemmWorkspaceBytes);
  // The first question loads the library: 0.2 s, but 3.6 s where 16 threads ask it at once (H200).
  LtGemm(asked.front()).load(0, any_workspace.get());
  std::atomic<std::size_t> next{0};
  const auto ask = [&] {
    ORRERY_CUDA(cudaSetDevice(device));
    for (std::size_t i = next.fetch_add(kTogether); i < asked.size();
         i = next.fetch_add(kTogether)) {
      const std::span part = std::span(asked).subspan(i, std::min(kTogether, asked.size() - i));
      const std::vector<LtGemm> gemms(part.begin(), part.end());
      LtGemm::load_all(gemms, any_workspace.get());
    }
  };
  constexpr unsigned kMostThreads = 16;
  std::vector<std::future<void>> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads); ++i) {
    threads.push_back(std::async(std::launch::async, ask));
  }
  for (std::future<void>& thread : threads) thread.get();
}

}  // namespace orrery
