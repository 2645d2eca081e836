#pragma once

// A layer of a mixture of experts in one launch: scores, top-k, rows sorted by expert, both layers
// of each expert, and each token's weighed sum.
//
//   scores = softmax or sigmoid of x router^T [+ logit_bias]     [tokens, experts], fp32
//   y[t] = sum over the topk experts e of t of weight(t, e) w2[e] act(w1[e] x[t])
//
// Experts are chosen by groups and with a correction bias as in index_shuffling.h: where there is a
// bias, groups are judged by their two best, and weights are of the scores without it.
//
// Of equal scores the lower expert wins. A score that is not a number counts as lower than any
// other, as in index_shuffling.h; `faults` says how many tokens have one, and their rows of y are
// not numbers. No token is dropped, whatever the routing, but where shape.capacity_factor says so.
//
// Shared experts (shape.shared) are one expert of so many times the ffn, added with weight 1:
//
//   y[t] += shared_w2 act(shared_w1 x[t])
//
// of fp8 with a scale of what lies between its layers for each ffn columns.
//
// Of fp8 (shape.is_fp8) rows of x and what lies between the layers, rounded to bf16, become fp8
// with the scale of their largest value / 448, as the weights of each column of y have one.
//
// On several GPUs each rank has tokens of its own and as many of the experts, in any order; one
// launch on each is one layer. Rows of x are stored where their experts are, results where their
// tokens are, and nothing else travels but counts: at most tokens * topk * hidden bf16 each way
// (fp8 with a scale to the experts).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery {

class FusedMoeTraceMemory;  // kernels/experts/fused_moe/traced.h
class ProcessMemory;        // kernels/comm/processes/process_memory.h

// Device pointers of a rank, row-major and contiguous, 16-byte aligned. `tokens` are its own.
struct FusedMoeOperands {
  const bf16* x = nullptr;          // [tokens, hidden]
  const bf16* router = nullptr;     // [experts, hidden], of all ranks
  const void* w1 = nullptr;         // [own experts, ffn or 2 ffn, hidden], bf16 or fp8; w2 likewise
  const void* w2 = nullptr;         // [own experts, hidden, ffn]
  const float* w1_scale = nullptr;  // of each row of w1, of fp8 alone; the next likewise
  const float* w2_scale = nullptr;  //
  const void* shared_w1 = nullptr;  // [shared ffn or 2 shared ffn, hidden], and scales likewise
  const void* shared_w2 = nullptr;  // [hidden, shared ffn]
  const float* shared_w1_scale = nullptr;
  const float* shared_w2_scale = nullptr;
  const float* correction_bias = nullptr;  // [experts], or null
  const bf16* logit_bias = nullptr;        // [experts], added before the scores are made; or null
  // [experts]: which of the experts of all ranks, counted from the first of the first rank on, each
  // expert of the router is; all different. Null: in order.
  const std::int32_t* places = nullptr;
  bf16* y = nullptr;               // [tokens, hidden]
  float* scores = nullptr;         // [tokens, experts]
  std::int32_t* faults = nullptr;  // [1]
};

// One shape's layer with the memory that it works in: launches allocate nothing, may be captured
// and must be on one stream of each rank. Each launch has a number, by which it knows what this one
// has done from what the one before left; nothing is cleared between them. All ranks launch as
// often.
class FusedMoePlan {
 public:
  // Of one rank, on the current device. Throws as require_fused_moe_shape does.
  explicit FusedMoePlan(const FusedMoeShape& shape);
  // Of a rank on each of shape.ranks devices, which reach each other's memory (cuda::DeviceTeam).
  // Ranks that share a GPU have as many of its SMs each: for checks, where there are not enough.
  FusedMoePlan(const FusedMoeShape& shape, std::span<const int> devices);
  // Of this process's rank on the current device, one of `ranks`, whose others are processes of
  // their own on this host; alone it is as the first. All processes make the call, those of other
  // ranks a ProcessMemory of no bytes. `rank` of the calls below is the place among `ranks`. Throws
  // as ProcessMemory does, too.
  FusedMoePlan(const FusedMoeShape& shape, const ProcessGroup& processes,
               std::span<const int> ranks);
  ~FusedMoePlan();
  FusedMoePlan(FusedMoePlan&&) noexcept;
  FusedMoePlan& operator=(FusedMoePlan&&) noexcept;

  // The part of `rank`, whose device is current, with `tokens` of its own, at most those of the
  // shape. Deterministic. Throws std::invalid_argument for operands that are null or not aligned
  // and for too many tokens, cuda::Error when the launch fails.
  void launch(const cuda::Stream& stream, const FusedMoeOperands& operands, std::int64_t tokens,
              int rank = 0) const {
    launch(stream, operands, tokens, rank, nullptr);
  }
  // The same by the kernel that also says when its blocks did what, some microseconds longer.
  // `trace` is of the same shape and device, and cleared.
  void launch_traced(const cuda::Stream& stream, const FusedMoeOperands& operands,
                     std::int64_t tokens, int rank, const FusedMoeTraceMemory& trace) const {
    launch(stream, operands, tokens, rank, &trace);
  }

  // Waits for `stream`, of `rank`. Throws std::runtime_error, saying for what, when a launch has
  // waited in vain for a part of itself or of another rank: it ends after two seconds, and y is no
  // numbers from then on.
  void require_finished(const cuda::Stream& stream, int rank = 0) const;

  // Gives back what processes share; nothing else may be called after it. All of them make the
  // call, once all launches have ended. Without it that memory stays until the process ends.
  void close(const ProcessGroup& processes);

  [[nodiscard]] const FusedMoeShape& shape() const { return shape_; }
  // Of a rank.
  [[nodiscard]] std::size_t workspace_bytes() const;

 private:
  struct Workspace;
  void launch(const cuda::Stream& stream, const FusedMoeOperands& operands, std::int64_t tokens,
              int rank, const FusedMoeTraceMemory* trace) const;
  [[nodiscard]] const Workspace& workspace(int rank) const;

  FusedMoeShape shape_;
  std::unique_ptr<ProcessMemory> areas_;                // null: all ranks are of this process
  std::vector<std::unique_ptr<Workspace>> workspaces_;  // of ranks; null for other processes'
};

}  // namespace orrery
