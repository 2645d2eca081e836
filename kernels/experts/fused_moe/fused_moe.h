#pragma once

// A layer of a mixture of experts in one launch: scores, top-k, rows sorted by expert, both layers
// of each expert, and each token's weighed sum.
//
//   scores = softmax or sigmoid of x router^T     [tokens, experts], fp32
//   y[t] = sum over the topk experts e of t of weight(t, e) w2[e] act(w1[e] x[t])
//
// Of equal scores the lower expert wins. A score that is not a number counts as lower than any
// other, as in index_shuffling.h; `faults` says how many tokens have one, and their rows of y are
// not numbers. No token is dropped, whatever the routing.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery {

// Device pointers, row-major and contiguous, 16-byte aligned.
struct FusedMoeOperands {
  const bf16* x = nullptr;         // [tokens, hidden]
  const bf16* router = nullptr;    // [experts, hidden]
  const bf16* w1 = nullptr;        // [experts, ffn or 2 ffn, hidden]
  const bf16* w2 = nullptr;        // [experts, hidden, ffn]
  bf16* y = nullptr;               // [tokens, hidden]
  float* scores = nullptr;         // [tokens, experts]
  std::int32_t* faults = nullptr;  // [1]
};

// One shape's layer with the memory that it works in: launches allocate nothing, may be captured
// and must be on one stream. Each launch has a number, by which it knows what this one has done
// from what the one before left; nothing is cleared between them.
class FusedMoePlan {
 public:
  // Throws as require_fused_moe_shape does.
  explicit FusedMoePlan(const FusedMoeShape& shape);
  ~FusedMoePlan();
  FusedMoePlan(FusedMoePlan&&) noexcept;
  FusedMoePlan& operator=(FusedMoePlan&&) noexcept;

  // Deterministic. No tokens launch nothing. Throws std::invalid_argument for operands that are
  // null or not aligned, cuda::Error when the launch fails.
  void launch(const cuda::Stream& stream, const FusedMoeOperands& operands) const;

  // Waits for `stream`. Throws std::runtime_error, saying for what, when a launch has waited in
  // vain for a part of itself: it ends after two seconds and its results are worth nothing.
  void require_finished(const cuda::Stream& stream) const;

  [[nodiscard]] const FusedMoeShape& shape() const { return shape_; }
  [[nodiscard]] std::size_t workspace_bytes() const;

 private:
  struct Workspace;
  FusedMoeShape shape_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace orrery
