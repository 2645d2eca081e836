#pragma once

// gemm on cuBLASLt: the algorithms that its heuristic proposes for a shape, each of which may be
// launched. https://docs.nvidia.com/cuda/cublas (cuBLASLt; narrow precision data types usage).

#include <cublasLt.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/dense/gemm/gemm.h"

#define ORRERY_CUBLAS(call)                                                \
  do {                                                                     \
    const cublasStatus_t orrery_code = (call);                             \
    if (orrery_code != CUBLAS_STATUS_SUCCESS) {                            \
      throw ::orrery::CublasError(orrery_code, #call, __FILE__, __LINE__); \
    }                                                                      \
  } while (false)

namespace orrery {

// Of the current device. Thread safe; kept until the process ends, when the driver frees it.
cublasLtHandle_t cublas_lt_handle();

// Loads the code of what `enqueue` puts on a stream, on the current device, and runs nothing:
// operands need addresses, not contents. cuBLASLt would load it at the first launch, and loading
// waits for the device to have nothing to do: for ever, where a collective that runs waits for the
// launches of another rank, which wait for the library.
void load_code(const std::function<void(const cuda::Stream&)>& enqueue);

class CublasError : public std::runtime_error {
 public:
  CublasError(cublasStatus_t code, const char* call, const char* file, int line)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cublasLtGetStatusName(code) + " (" + cublasLtGetStatusString(code) +
                           ")"),
        code_(code) {}
  [[nodiscard]] cublasStatus_t code() const { return code_; }

 private:
  cublasStatus_t code_;
};

// Immutable and thread safe; launches that share a workspace must be on one stream.
class LtGemm {
 public:
  // At most `proposals` that need at most kGemmWorkspaceBytes, best first; where several are asked
  // for fp8, as many again without the tensor core's fast accumulation, which at times are faster.
  // They are kept for the process: a shape that is known takes microseconds. Throws
  // std::invalid_argument when cuBLASLt has none for the shape.
  explicit LtGemm(const GemmShape& shape, int proposals = 1);

  [[nodiscard]] int num_algorithms() const { return static_cast<int>(known_->proposals.size()); }
  [[nodiscard]] std::size_t workspace_bytes(int algorithm) const {
    return known_->proposals[algorithm].found.workspaceSize;
  }
  // load_code() of the algorithm, once for a shape, since its code depends on m beside it; other
  // threads wait for the first. `workspace` as for launch(); it is not touched.
  void load(int algorithm, void* workspace) const;
  // load() of the best algorithm of each, in one go, with the largest workspace of any.
  static void load_all(std::span<const LtGemm> gemms, void* workspace);
  // `workspace` holds workspace_bytes(algorithm), 256-byte aligned. Throws CublasError.
  void launch(const cuda::Stream& stream, const GemmOperands& operands, int algorithm,
              void* workspace) const;

  static constexpr int kProposals = 8;

 private:
  struct Proposal {
    cublasLtMatmulHeuristicResult_t found;
    std::int8_t fast_accumulation;  // fp8 only
  };
  // What is known of a shape.
  struct Known {
    std::vector<Proposal> proposals;
    std::vector<std::once_flag> is_loaded;  // by proposal
  };
  [[nodiscard]] Known* known(const GemmShape& shape, int proposals);
  void propose(int proposals, std::int8_t fast_accumulation, std::vector<Proposal>& into);

  // The library's descriptors as plain values: nothing to destroy.
  cublasLtMatmulDescOpaque_t matmul_{};
  cublasLtMatrixLayoutOpaque_t x_{};
  cublasLtMatrixLayoutOpaque_t w_{};
  cublasLtMatrixLayoutOpaque_t y_{};
  bool is_fp8_;
  bool has_bias_;
  Known* known_;  // shared by equal shapes, kept until the process ends
};

// Asks cuBLASLt for GEMMs of 1 to m rows of each of `shapes` and loads the code of what it
// proposes, on the current device, in several threads: a GemmPlan of any of them then asks and
// loads nothing. Those that the weight-streaming kernel serves are left out.
void prepare_gemms(std::span<const GemmShape> shapes);

}  // namespace orrery
