#pragma once

// Steps in virtual time. Decode batches are padded to captured graph sizes and replayed as graphs;
// steps with prefill, and batches above the largest captured size, are launched one kernel at a
// time: kernel k (from 0) starts when the one before has ended and the host has issued it, at (k +
// 1) eager_launch, so the host runs ahead of long kernels and holds up short ones. Within an
// interval of mean context the time of a decode step is linear in it.
//
// Besides launching, the host takes scheduler_base + scheduler_per_sequence * (decodes + chunks)
// for a step: choosing the batch, its inputs, its results.
//
// What the scheduler decided is what is priced: a step takes as long as the plan of its batch
// (sim/serve/step_time.h) does, at the level asked for. Data-parallel ranks meet in every layer
// where experts exchange their tokens, so a step of theirs takes as long as if all had the batch of
// the slowest beside experts for the tokens of all, and the others wait in each layer; all pad to
// the same graph, and where one has a prompt none replays a graph. Plans that are one chain are
// assembled from templates (step_templates.h); others are lowered and simulated for each shape,
// rounded to 7 bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/serve/step_backend.h"
#include "sim/serve/step_corrections.h"
#include "sim/serve/step_templates.h"

namespace orrery {

// Extra time of one attention layer when the decoding sequences differ in context length, over
// equal lengths of the same sum: SMs then get parts of several rows (a sequence and a KV head)
// instead of one, and merge them. `of_few`: where there are at most half as many rows as SMs, which
// share each of them in any case.
struct UnevenAttention {
  Seconds more;
  Seconds of_few;
};

// Which steps attend in one shape: those of as many queries (new tokens) and as many keys (tokens
// of all sequences, the new ones included), both rounded up to multiples.
struct AttentionShape {
  std::int64_t queries = 1;
  std::int64_t keys = 1;
};

struct SimulatedStepsConfig {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  StepLevel level = StepLevel::kClosedForm;
  const Machine* machine = nullptr;
  const CostModel* graph_cost = nullptr;  // LaunchMode::kGraph
  const CostModel* eager_cost = nullptr;  // LaunchMode::kEager
  Seconds scheduler_base;
  Seconds scheduler_per_sequence;
  // Host time of a step with prefill besides; and of one with numbers of rows (new tokens, sampled
  // ones, decodes) that none of the last kMostPrepared such steps had, which it prepares.
  Seconds prefill_base;
  Seconds new_rows;
  // Host time of a step whose attention has a shape that the replica has not had yet: a library
  // plans it anew and keeps the plan.
  Seconds new_attention;
  AttentionShape attention_shape;
  UnevenAttention uneven_attention;
  // Ascending; empty: no graphs, all steps are eager.
  std::vector<std::int64_t> graph_batch_sizes;
  // Of these, ascending, those of steps that are one kernel, which takes these times.
  std::vector<std::int64_t> megakernel_batch_sizes;
  megakernel::MachineTimes megakernel;
  // Steps of at most so many tokens on a rank replay the layers in pieces, attention between them
  // launched by the host: of decodes, where no graph of the whole step is replayed, and of steps
  // with prefill. Costs are null where there are no such steps.
  std::int64_t max_piece_tokens = 0;
  const CostModel* decode_piece_cost = nullptr;
  const CostModel* mixed_piece_cost = nullptr;
  // The host prepares a step while the one before runs: a step takes the longer of host and device
  // instead of the sum.
  bool async_scheduling = false;
};

// Times of steps of one deployment, shared by its replicas. Thread safe; the value for a batch does
// not depend on what was asked before.
class StepTimes {
 public:
  explicit StepTimes(SimulatedStepsConfig config);

  // Time of one step, host included, of GPUs that have `budget` of the full clock left; without one
  // at the full clock. `ranks`: as StepBackend has them.
  StepTime step(std::span<const Batch> ranks, PowerBudget* budget = nullptr,
                KnownToHost known = {});
  // Of one batch of the whole instance.
  StepTime step(const Batch& batch, PowerBudget* budget = nullptr, KnownToHost known = {}) {
    return step(std::span(&batch, 1), budget, known);
  }
  [[nodiscard]] bool prepares() const { return config_.new_rows > Seconds(0); }
  [[nodiscard]] bool plans_attention() const { return config_.new_attention > Seconds(0); }
  [[nodiscard]] const AttentionShape& attention_shape() const { return config_.attention_shape; }
  [[nodiscard]] const PowerLimit* power_limit() const {
    const PowerLimit& limit = config_.eager_cost->options().power;
    return limit.acts() ? &limit : nullptr;
  }
  // Of the time of decode steps, the share of their arithmetic.
  double arithmetic_share(std::span<const Batch> ranks);
  // Linear piece of decode steps, see StepBackend::fast_forward; of GPUs as above. `known`: of each
  // of the steps.
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps,
                           const PowerBudget* budget = nullptr, KnownToHost known = {});
  FastForward fast_forward(const Batch& batch, std::int64_t max_steps,
                           const PowerBudget* budget = nullptr) {
    return fast_forward(std::span(&batch, 1), max_steps, budget);
  }
  // Of the plan of a step at the full clock, without the host; decodes at their exact context.
  DeviceTime device_time(const Batch& batch);
  // step_deviations of that plan.
  std::map<std::string, Seconds> deviations(const Batch& batch);
  // What each correction of the list did to the time of one step, in order.
  std::vector<AppliedStepCorrection> explain(const Batch& batch, PowerBudget* budget = nullptr,
                                             KnownToHost known = {});

 private:
  // A way of launching steps, and what was priced so.
  struct Launched {
    explicit Launched(const StepSetup& of) : setup(of), templates(of) {}
    StepSetup setup;
    StepTemplates templates;
    std::map<StepShape, DeviceTime> mixed_times;
  };
  // A step as one of its ranks sees it: what is priced.
  struct View {
    StepShape shape;
    Launched* way = nullptr;
    std::int64_t sequences = 0;  // of the rank
    double decode_context = 0;   // the mean
    bool has_prefill = false;
  };
  // Of a batch that is dealt to the ranks evenly: the fullest rank's. Of ranks with batches of
  // their own: one of each.
  View even_view(const Batch& batch);
  std::vector<View> rank_views(std::span<const Batch> ranks);
  // How a step is launched that has so many tokens on the fullest rank; of a graph, as padded.
  Launched& launched(bool is_graph, bool has_prefill, std::int64_t rank_tokens);
  // Device time of decodes at a grid point of the mean context.
  DeviceTime decode_time(const View& view, std::int64_t context);
  // Of steps with prefill: as if all decodes had one context.
  DeviceTime even_mixed_time(const View& view);
  // Of decodes of a view.
  struct Piece {
    StepPrice price;
    DeviceTime low;
    DeviceTime high;
    double first_context = 0;
    double last_context = 0;
  };
  Piece piece_at(const View& view);
  double arithmetic_share(const View& view);
  // Of a step's energy what the power limit of the boards allows for in its time.
  [[nodiscard]] Joules within_limit(Joules energy, Seconds duration) const;
  StepTime step_of(const View& view, PowerBudget* budget, KnownToHost known,
                   std::vector<AppliedStepCorrection>* applied = nullptr);
  FastForward fast_forward_of(const View& view, std::int64_t max_steps, const PowerBudget* budget,
                              KnownToHost known,
                              std::vector<AppliedStepCorrection>* applied = nullptr);

  SimulatedStepsConfig config_;
  Launched graph_;
  Launched eager_;
  std::optional<Launched> one_kernel_;
  std::optional<Launched> decode_pieces_;
  std::optional<Launched> mixed_pieces_;
  std::shared_mutex mutex_;
  struct Decodes {
    std::int64_t num_decodes = 0;
    std::int64_t context = 0;
    std::int64_t tokens = 0;
    std::int64_t rank_rows = 0;
    std::int64_t query = 1;
    std::int64_t seqs = 0;
    std::int64_t padding = 0;
    auto operator<=>(const Decodes&) const = default;
  };
  std::map<Decodes, DeviceTime> decode_times_;
};

// Steps that an engine keeps prepared, besides graphs (kernels/serve/executor_runner.cpp).
inline constexpr std::size_t kMostPrepared = 64;

// Steps that are those of other times from some step on.
class TimedSteps : public StepBackend {
 public:
  // From the next step on; `times` outlives it, or the next call.
  virtual void use(StepTimes& times) = 0;
};

// Knows what its GPUs did before: of the full clock they have what pauses and decodes gave back.
class SimulatedSteps : public TimedSteps {
 public:
  // `times` outlives it.
  explicit SimulatedSteps(StepTimes& times);
  void use(StepTimes& times) override { times_ = &times; }
  void starts(Seconds now) override { now_ = now; }
  StepTime run(std::span<const Batch> ranks) override;
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override;

 private:
  // Of the full clock, what decodes and pauses gave back, or took, since since_.
  void spend();
  // Numbers of rows of a step with prefill, and whether they were known.
  bool is_prepared(std::span<const Batch> ranks);
  using Rows = std::array<std::int64_t, 3>;
  // Whether all ranks have had attention of the shape of their batches; they have it from now on.
  bool has_attended(std::span<const Batch> ranks);
  // Rank of `ranks`, queries and keys.
  using Attended = std::array<std::int64_t, 3>;

  StepTimes* times_;
  std::map<Rows, std::int64_t> prepared_;  // last use
  std::int64_t num_runs_ = 0;
  std::set<Attended> attended_;
  std::optional<PowerBudget> budget_;
  Seconds now_;
  Seconds since_;     // the last step with prefill ended, or spend() was called
  Seconds decoding_;  // from then on, at most so long
  double share_ = 0;  // of arithmetic in that time
};

}  // namespace orrery
