#include "kernels/binding/bind_resources.h"

namespace orrery {

BindResources::BindResources(bool overlap_weights) : overlap_weights_(overlap_weights) {}

std::byte* BindResources::scratch(const std::string& purpose, std::size_t bytes) {
  auto& buffers = scratch_[purpose];
  if (buffers.empty() || buffers.back().size() < bytes) {
    auto& added = buffers.emplace_back(bytes);
    if (bytes > 0) {
      const cuda::Stream stream;
      ORRERY_CUDA(cudaMemsetAsync(added.get(), 0, bytes, stream.get()));
      stream.synchronize();
    }
  }
  return buffers.back().get();
}

const GemmPlan& BindResources::gemm(const GemmShape& shape) {
  const auto found = gemms_.find(shape);
  if (found != gemms_.end()) return found->second;
  const GemmOptions options{.overlap = overlap_weights_,
                            .workspace = scratch("gemm", kGemmWorkspaceBytes)};
  return gemms_.emplace(shape, GemmPlan(shape, options)).first->second;
}

const BatchedGemmPlan& BindResources::batched_gemm(const BatchedGemmShape& shape) {
  const auto found = batched_gemms_.find(shape);
  if (found != batched_gemms_.end()) return found->second;
  std::byte* const workspace = shape.dtype == DType::kFp8
                                   ? scratch("grouped_gemm", grouped_gemm_workspace_bytes())
                                   : scratch("gemm", kGemmWorkspaceBytes);
  return batched_gemms_.emplace(shape, BatchedGemmPlan(shape, workspace)).first->second;
}

const GroupedGemmPlan& BindResources::grouped_gemm(const GroupedGemmShape& shape,
                                                   const GroupedGemmLoad& load, bool may_overlap) {
  const std::tuple key(shape, load, may_overlap);
  const auto found = grouped_gemms_.find(key);
  if (found != grouped_gemms_.end()) return found->second;
  const GroupedGemmOptions options{
      .programmatic = overlap_weights_,
      .overlap = overlap_weights_ && may_overlap,
      .workspace = scratch("grouped_gemm", grouped_gemm_workspace_bytes())};
  return grouped_gemms_.emplace(key, GroupedGemmPlan(shape, load, options)).first->second;
}

std::shared_ptr<const PrefillPlan> BindResources::prefill_plan(std::int32_t tile_rows,
                                                               std::int32_t window) {
  auto& plan = prefill_plans_[{tile_rows, window}];
  if (plan == nullptr) plan = std::make_shared<const PrefillPlan>(prefill_, tile_rows, window);
  return plan;
}

void BindResources::begin_step(std::span<const PrefillSequence> prefill) {
  prefill_.assign(prefill.begin(), prefill.end());
  prefill_plans_.clear();
}

std::size_t BindResources::bytes() const {
  std::size_t total = 0;
  for (const auto& [purpose, buffers] : scratch_) {
    for (const auto& buffer : buffers) total += buffer.size();
  }
  return total;
}

}  // namespace orrery
