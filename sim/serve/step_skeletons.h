#pragma once

// Device time of one engine step, assembled from parts that repeat between batches. A plan that is
// one chain splits into
//
//   ops that depend on the number of tokens only     kept per token count ("skeleton")
// + attention, which depends on the batch's shape    asked of the cost model for each shape
// + LM head and sampling, by the number of sequences kept per sequence count
//
// whose times, put back in their order, give the closed form of the whole plan, eager launches
// included. Token counts of steps with prefill are interpolated in cells of at most 1/64, which do
// not reach over a multiple of 128, where GEMMs take one more row of tiles and times jump; shapes
// of attention are rounded to 8 significant bits (0.2 %). Errors against the whole plan are below
// 0.5 % (tests/serve/simulated_steps_test.cpp). The value of a key does not depend on who asks
// first. Thread safe.

#include <cstdint>
#include <map>
#include <shared_mutex>
#include <span>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"

namespace orrery {

struct DeviceTime {
  Seconds duration;
  BasisSeconds basis;
};

// What a step is made of and on what it runs. Pointers outlive whoever holds this.
struct StepSetup {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  const Machine* machine = nullptr;
  const CostModel* cost = nullptr;
  StepLevel level = StepLevel::kClosedForm;
  // Decodes of different contexts: attention of them lies between that of powers of two, whose rows
  // are all measured as they fill the multiprocessors evenly.
  bool has_uneven_decodes = false;
};

// The plan of `batch` on all ranks of one instance.
Plan step_plan(const StepSetup& setup, const Batch& batch);
// Its makespan: at kClosedForm by the closed form; where the plan is no chain on the heap, or at
// kRepresentative if kernels run beside each other.
DeviceTime step_time(const StepSetup& setup, const Batch& batch);

class StepSkeletons {
 public:
  explicit StepSkeletons(StepSetup setup);

  // False when the model or the mesh makes the plan something else than one chain of GPU ops whose
  // attention is known by its dims: then `time` may not be used.
  [[nodiscard]] bool apply() const { return apply_; }

  // `padded_decodes` >= batch.num_decodes: sequences that the token-wise ops compute (padding of
  // captured graphs). `context`: mean context of the decodes, in place of batch.decode_context.
  DeviceTime time(const Batch& batch, std::int64_t padded_decodes, double context);

 private:
  struct Attention {
    KernelOp op;  // dims of one rank
    bool is_decode = false;
    double count = 0;
  };
  // One op of the chain: a fixed time, or that of an attention.
  struct Task {
    Seconds time;
    std::int32_t attention = -1;  // index into Skeleton::attention
  };
  // Tasks [first, last) run `count` times in a row.
  struct Section {
    std::int32_t first = 0;
    std::int32_t last = 0;
    std::int64_t count = 1;
  };
  // LM head and sampling, in order.
  struct Tail {
    std::vector<Seconds> times;
    BasisSeconds basis;
  };
  struct Skeleton {
    std::vector<Task> tasks;  // all but LM head and sampling; gaps of graph nodes included
    std::vector<Section> sections;
    std::vector<Attention> attention;
    BasisSeconds basis;  // of the fixed times
    Tail tail;
  };
  // What besides its tokens a skeleton depends on. Where data-parallel ranks share a step, the rows
  // of the fullest one follow from the number of equal chunks and of decodes; elsewhere those
  // are 1.
  struct Content {
    std::int64_t chunks = 0;
    std::int64_t decodes = 0;
    bool operator<(const Content& other) const {
      return chunks != other.chunks ? chunks < other.chunks : decodes < other.decodes;
    }
  };

  const Skeleton& skeleton(std::int64_t tokens, const Content& content);
  Skeleton make_skeleton(std::int64_t tokens, const Content& content) const;
  const Tail& tail(std::int64_t num_sampled);
  // Time of one copy of each attention of the skeleton; their basis is added to `basis`.
  std::vector<Seconds> attention_times(const Skeleton& skeleton, const Batch& batch, double context,
                                       BasisSeconds& basis) const;
  // When the last task ends: tasks follow each other, none before the host has issued it.
  static Seconds end_of(const Skeleton& skeleton, std::span<const Seconds> attention,
                        std::span<const Seconds> tail, Seconds launch);

  StepSetup setup_;
  bool apply_ = false;
  std::shared_mutex mutex_;
  std::map<std::pair<std::int64_t, Content>, Skeleton> skeletons_;
  std::map<std::int64_t, Tail> tails_;
};

// Token counts first ... last between which times are interpolated; one count where it is small.
struct TokenCell {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
TokenCell token_cell(std::int64_t tokens);

// `value` rounded to `bits` significant bits; small values are kept.
std::int64_t round_bits(std::int64_t value, int bits);

}  // namespace orrery
