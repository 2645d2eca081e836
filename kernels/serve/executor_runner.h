#pragma once

// Steps on GPUs: lowers and splits the plan of each batch, keeps what the executor prepared of it,
// and runs it. Decode batches are captured once; other steps are prepared when they first come and
// kept by their numbers of rows, since the executor binds their chunks anew anyway.
//
// Not thread safe; one per replica.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/serve/host_tier.h"
#include "kernels/serve/layer_events.h"
#include "kernels/serve/step_runner.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"

namespace orrery {

struct ExecutorRunnerSetup {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  // All but its plans, which are made here. max_tokens and max_sequences are those of the
  // scheduler, or of the largest graph where that is more.
  ExecutorSetup executor;
  // Behind the KV blocks, of one data-parallel rank; none: what is evicted is lost.
  std::optional<HostTierConfig> host_tier;
  // Layers of the KV cache move while later ones are computed; no tier is behind it then.
  bool announces_layers = false;
  // Rows of decode steps that run as one kernel; others that are captured, as graphs.
  std::vector<std::int64_t> megakernel_rows;
  // Rows of decode steps that will be captured, ascending: even parts of all data-parallel ranks'
  // rows pad to one of these too.
  std::vector<std::int64_t> graph_rows;
  // Context of the decodes for which graphs are captured: they keep how its attention is split.
  std::int64_t capture_context = 1024;
  // Among the ranks of all replicas: what is added to those of this one in errors.
  int first_rank = 0;
};

// Where the time of a step went.
struct RunTimes {
  std::int64_t graph_rows = 0;  // 0: eager
  Seconds prepare;              // of a step that came for the first time
  Seconds run;                  // Executor::run, from its call to its return
  Seconds duration;             // StepOutput::duration
  Seconds device;               // StepOutput::device
  Seconds waited;               // of it, for blocks that moved from the host or to it
  double balance = 1;           // of the tokens of data-parallel ranks, mean over most
};

class ExecutorRunner : public StepRunner {
 public:
  // Allocates everything and runs steps of many sizes, the largest first, so that libraries have
  // loaded their kernels. Throws std::invalid_argument for what
  // cannot be served on GPUs (micro-batches of a pipeline, kernels that cannot be executed, layers
  // announced of two batches at once),
  // std::runtime_error when a GPU fails.
  explicit ExecutorRunner(ExecutorRunnerSetup setup);

  void capture(std::int64_t rows) override;
  // Throws std::invalid_argument for a graph that was not captured, else as Executor does.
  std::vector<std::int32_t> run(const StepInput& input, std::int64_t graph_rows,
                                const KvMoves& moves) override;
  [[nodiscard]] Seconds waited() const override;

  [[nodiscard]] const Executor& executor() const { return executor_; }
  // Of the steps of run(); null: layers are not announced.
  [[nodiscard]] const LayerEvents* layer_events() const { return layer_events_.get(); }
  // Of every step that was run since serving began, in order.
  [[nodiscard]] std::span<const RunTimes> times() const { return times_; }

 private:
  // Numbers of rows that a plan is made for, on each data-parallel rank, or half of one.
  struct Rows {
    std::int64_t prefill = 0;
    std::int64_t sampled = 0;
    std::int64_t decodes = 0;
    bool is_halved = false;
    // Cached tokens of prompts, of latents alone: they are expanded by as many rows of the plan.
    std::int64_t expanded = 0;
    // Of all data-parallel ranks, where these have even parts; of a graph those of one part.
    std::int64_t even = 0;
    auto operator<=>(const Rows&) const = default;
  };
  struct Prepared {
    std::unique_ptr<PreparedStep> step;
    std::int64_t last_use = 0;
  };

  // `tokens` of prompts and `decodes` after `context` tokens beside them, on each rank.
  [[nodiscard]] StepInput any_input(std::int64_t tokens, std::int64_t decodes,
                                    std::int64_t context = 0) const;
  // Decodes alone, of each rank.
  [[nodiscard]] StepInput any_decodes(std::span<const std::int64_t> ranks,
                                      std::int64_t context) const;
  void add_decodes(StepInput& input, std::int64_t count, std::int64_t context, int rank) const;
  [[nodiscard]] std::vector<std::int32_t> any_blocks(std::int64_t tokens, std::int64_t index) const;
  // Numbers of rows for which decodes that pad to `rows` are captured.
  [[nodiscard]] std::vector<Rows> graphs_of(std::int64_t rows) const;
  PreparedStep& eager(const DealtInput& dealt);
  std::vector<std::int32_t> run_step(const StepInput& input, std::int64_t graph_rows);
  std::vector<std::int32_t> run_timed(PreparedStep& step, const DealtInput& dealt, RunTimes times);

  ExecutorRunnerSetup setup_;
  std::unique_ptr<HostTier> host_tier_;  // null: there is none
  std::unique_ptr<LayerEvents> layer_events_;
  Executor executor_;
  std::map<Rows, std::unique_ptr<PreparedStep>> graphs_;  // of decodes, and even, alone
  std::map<Rows, Prepared> eager_;
  std::int64_t num_runs_ = 0;
  std::vector<RunTimes> times_;
};

}  // namespace orrery
