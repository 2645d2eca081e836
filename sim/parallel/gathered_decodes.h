#pragma once

// Decodes that are dealt out to context-parallel ranks (CpDecodes), where all ranks need their
// rows: attention of each is over a part of every context, and any rank may store a new token.

#include <cstdint>
#include <map>
#include <utility>

#include "sim/parallel/context_rows.h"
#include "sim/parallel/rewrite.h"
#include "sim/plan/plan.h"

namespace orrery {

class GatheredDecodes {
 public:
  // All outlive it.
  GatheredDecodes(Rewrite& rewrite, const ContextRows& rows, int cp);

  // The rows of all ranks' decodes in place of each of `reads` but the cache, brought by one
  // all_gather before `op` where they are not there yet.
  void gather(const Op& op, TensorViews& reads);
  // A run's copies gather anew.
  void forget() { known_.clear(); }

 private:
  TensorId add_tensor(const TensorView& own);

  Rewrite& rewrite_;
  const ContextRows& rows_;
  int cp_;
  std::map<std::pair<TensorId, std::int32_t>, TensorId> known_;  // by tensor and first column
};

}  // namespace orrery
