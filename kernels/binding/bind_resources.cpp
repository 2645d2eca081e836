#include "kernels/binding/bind_resources.h"

namespace orrery {

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

void BindResources::begin_step(std::span<const PrefillChunk> prefill) {
  prefill_.assign(prefill.begin(), prefill.end());
  kept_for_step_.clear();
}

std::size_t BindResources::bytes() const {
  std::size_t total = 0;
  for (const auto& [purpose, buffers] : scratch_) {
    for (const auto& buffer : buffers) total += buffer.size();
  }
  return total;
}

}  // namespace orrery
