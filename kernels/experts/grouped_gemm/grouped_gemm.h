#pragma once

// The linear layers of a mixture of experts: rows sorted by group, each group with its own weights,
// how many rows each has known on the device alone. On tensor cores (sm_90a), summed in fp32.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/handles.h"
#include "kernels/experts/grouped_gemm/choice.h"
#include "kernels/experts/grouped_gemm/scatter.h"

namespace orrery {

// Device pointers, row-major and contiguous; x, w and y 16-byte aligned. Scales are null but for
// fp8. What fp16 does not reach (65,504, rounded to the nearest) is infinite in y.
struct GroupedGemmOperands {
  const void* x = nullptr;               // [max_rows, k], rows sorted by group, from row 0
  const void* w = nullptr;               // [groups, n, k]
  const std::int32_t* counts = nullptr;  // [groups], rows of each group
  void* y = nullptr;                     // [max_rows, n], bf16, or fp16 as x and w are
  const float* x_scale = nullptr;        // [max_rows]
  const float* w_scale = nullptr;        // [groups, n]
  ScatterTarget scatter;  // where out is set, rows are added there, none of fp16; y is not used
};

struct GroupedGemmOptions {
  // The kernel may be launched while the kernels before it in the stream still run (programmatic
  // dependent launch); what it reads and writes waits for them.
  bool programmatic = false;
  // Programmatic, and the weight-streaming kernel reads counts and fetches w before they have
  // ended. Only where nothing queued on the stream writes w or its scales, and where the kernel
  // right before does not write counts and is one that lets others start only after its own
  // predecessors have ended, as all of this project's do that are no gemms with overlapped weights.
  bool overlap = false;
  // grouped_gemm_workspace_bytes() of device memory, 256-byte aligned and zeroed before its first
  // use, in place of one that the plan allocates itself: plans may share it whose launches are on
  // one stream. It must outlive the plan.
  std::byte* workspace = nullptr;
  // SMs that it leaves to what runs beside it, such as collectives of another stream: its blocks
  // share the others, where those of a whole GPU would come one after another on each SM that is
  // held.
  int free_sms = 0;
};

// What no plan exceeds.
std::size_t grouped_gemm_workspace_bytes();

// One shape's grouped gemm under one expected load, made ahead of time: launches allocate nothing
// and may be captured. They share a workspace, so these must be on one stream. Equal shapes and
// loads give equal plans; equal plans, counts and operands equal results.
class GroupedGemmPlan {
 public:
  // Throws std::invalid_argument as require_grouped_gemm_shape() does.
  GroupedGemmPlan(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                  const GroupedGemmOptions& options = {});
  // With this kernel and tile; throws std::invalid_argument at launch if it is not built.
  GroupedGemmPlan(const GroupedGemmShape& shape, const GroupedGemmChoice& choice,
                  const GroupedGemmOptions& options = {});
  ~GroupedGemmPlan();
  GroupedGemmPlan(GroupedGemmPlan&&) noexcept;
  GroupedGemmPlan& operator=(GroupedGemmPlan&&) noexcept;

  // Any counts are served, whatever the load: groups without rows cost a look at their count, their
  // w is not read; rows past the sum of counts are not written. A negative count is taken as 0;
  // where the sum exceeds max_rows, the first max_rows rows are computed. Empty shapes launch
  // nothing. Throws std::invalid_argument for operands that are null or not aligned, cuda::Error
  // when the launch fails.
  void launch(const cuda::Stream& stream, const GroupedGemmOperands& operands) const;

  [[nodiscard]] const GroupedGemmShape& shape() const { return shape_; }
  [[nodiscard]] const GroupedGemmChoice& choice() const { return choice_; }

 private:
  GroupedGemmShape shape_;
  GroupedGemmOptions options_;
  GroupedGemmChoice choice_;
  std::unique_ptr<cuda::DeviceBuffer<std::byte>> own_workspace_;  // null where none is needed
};

}  // namespace orrery
