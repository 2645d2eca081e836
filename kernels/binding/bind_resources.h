#pragma once

// What launches of one rank's stream share: scratch memory, gemm plans, the tiles of this step's
// prefill. Memory stays where it is for the life of the object, since captured graphs hold the
// addresses; an executor makes one for each rank, on its device, and lets it outlive their launches
// and graphs. Not thread safe. Allocates and synchronises: not while its device captures.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/cuda/handles.h"
#include "kernels/dense/batched_gemm/batched_gemm.h"
#include "kernels/dense/gemm/gemm.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {

class BindResources {
 public:
  // Serves the device that is current in later calls, always the same. `overlap_weights`: gemms
  // that stream their weights start while the kernel before them ends and fetch weights meanwhile
  // (GemmOptions::overlap), which is right for a model, whose weights nothing writes.
  explicit BindResources(bool overlap_weights = false);
  [[nodiscard]] bool overlaps_weights() const { return overlap_weights_; }
  // At least `bytes` of memory for one purpose, 256-byte aligned, zeroed when it is allocated and
  // not again; callers of a purpose get the same memory and are ordered by the stream. A larger
  // request gets new memory, and the old stays for graphs that hold it.
  std::byte* scratch(const std::string& purpose, std::size_t bytes);
  // Kept for the life of this object; all share one workspace. Throws as GemmPlan does.
  const GemmPlan& gemm(const GemmShape& shape);
  const BatchedGemmPlan& batched_gemm(const BatchedGemmShape& shape);  // likewise
  // Likewise, chosen for the load. `may_overlap`: what GroupedGemmOptions::overlap asks for holds
  // but for w. Throws as GroupedGemmPlan does.
  const GroupedGemmPlan& grouped_gemm(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                                      bool may_overlap = false);
  // Tiles of the prefill sequences set last, made once for a step. Shared, since a step that was
  // bound may be run again after the next one has begun: its launches keep their tiles alive, and
  // whoever captures them keeps them as long as the graph. Launches must have ended when the last
  // owner lets go. Throws as PrefillPlan does.
  std::shared_ptr<const PrefillPlan> prefill_plan(std::int32_t tile_rows, std::int32_t window);
  // A new step: tiles of the old one live on in its launches only.
  void begin_step(std::span<const PrefillSequence> prefill);
  // Device memory held, in bytes: the "workspace" of memory reports. Tiles do not count.
  [[nodiscard]] std::size_t bytes() const;

 private:
  bool overlap_weights_;
  std::map<std::string, std::vector<cuda::DeviceBuffer<std::byte>>> scratch_;
  std::map<GemmShape, GemmPlan> gemms_;
  std::map<BatchedGemmShape, BatchedGemmPlan> batched_gemms_;
  std::map<std::tuple<GroupedGemmShape, GroupedGemmLoad, bool>, GroupedGemmPlan> grouped_gemms_;
  std::vector<PrefillSequence> prefill_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::shared_ptr<const PrefillPlan>>
      prefill_plans_;
};

}  // namespace orrery
