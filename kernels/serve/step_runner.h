#pragma once

// What computes the steps of one instance: GPUs (kernels/serve/executor_runner.h), or something
// else in tests.

#include <cstdint>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/serve/kv_moves.h"
#include "sim/units/units.h"

namespace orrery {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Gets ready to replay decode steps of `rows` rows as a captured graph, or to run them as one
  // kernel.
  virtual void capture(std::int64_t rows) = 0;
  // Computes the step and waits for it; where there are several data-parallel ranks, its sequences
  // name theirs. `graph_rows` > 0: decodes alone, padded to that many rows on each rank, captured
  // before; 0: launched one kernel at a time. `moves` are made beside it. Next tokens of the
  // sampled rows: chunks that produce a token, then decodes.
  virtual std::vector<std::int32_t> run(const StepInput& input, std::int64_t graph_rows,
                                        const KvMoves& moves) = 0;
  // How long the last step waited for blocks that moved.
  [[nodiscard]] virtual Seconds waited() const { return {}; }
};

}  // namespace orrery
