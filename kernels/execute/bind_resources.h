#pragma once

// What launches of one rank's stream share: scratch memory, gemm plans, the tiles of this step's
// prefill. Everything stays where it is for the life of the executor, since captured graphs hold
// the addresses.

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention_prefill/attention_prefill.h"
#include "kernels/cuda/handles.h"
#include "kernels/gemm/gemm.h"

namespace orrery {

class BindResources {
 public:
  // At least `bytes` of zeroed device memory for one purpose, 256-byte aligned; callers of a
  // purpose get the same memory and are ordered by the stream. A larger request gets new memory,
  // and the old stays for graphs that hold it.
  std::byte* scratch(const std::string& purpose, std::size_t bytes);
  // Kept for the process's life of this object; its workspace is shared by all.
  const GemmPlan& gemm(const GemmShape& shape);
  // Tiles of the prefill sequences set last.
  const PrefillPlan& prefill_plan(std::int32_t tile_rows, std::int32_t window);
  // A new step: tiles of the old one are dropped once the stream is idle.
  void begin_step(std::span<const PrefillSequence> prefill);
  [[nodiscard]] int num_multiprocessors() const { return num_multiprocessors_; }
  // Device memory held, in bytes: the "workspace" of memory reports.
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::map<std::string, std::vector<cuda::DeviceBuffer<std::byte>>> scratch_;
  std::map<GemmShape, GemmPlan> gemms_;
  std::vector<PrefillSequence> prefill_;
  std::map<std::pair<std::int32_t, std::int32_t>, PrefillPlan> prefill_plans_;
  int num_multiprocessors_ = 0;
};

}  // namespace orrery
