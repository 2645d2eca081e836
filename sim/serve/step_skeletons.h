#pragma once

// Device time of one engine step, assembled from parts that repeat between batches. For a plan that
// is one chain the closed form is a sum, so a step's time splits exactly into
//
//   ops that depend on the number of tokens only     kept per token count ("skeleton")
// + attention, which depends on the batch's shape    asked of the cost model for each shape
// + LM head and sampling, by the number of sequences kept per sequence count
//
// Token counts above 256 are rounded to 8 significant bits (at most 0.2 %), mean contexts and
// prompt chunks to 1/64 octave. The value of a key does not depend on who asks first. Thread safe.

#include <cstdint>
#include <map>
#include <shared_mutex>
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
DeviceTime operator+(const DeviceTime& a, const DeviceTime& b);

// What a step is made of and on what it runs. Pointers outlive whoever holds this.
struct StepSetup {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  const Machine* machine = nullptr;
  const CostModel* cost = nullptr;
  StepLevel level = StepLevel::kClosedForm;
};

// The plan of `batch` on all ranks of one instance.
Plan step_plan(const StepSetup& setup, const Batch& batch);
// Its makespan: at kClosedForm by the closed form, or on the heap where the plan is no chain.
DeviceTime step_time(const StepSetup& setup, const Batch& batch);

class StepSkeletons {
 public:
  explicit StepSkeletons(StepSetup setup);

  // False when the model or the mesh makes the plan something else than one chain whose attention
  // is known by its dims: then `time` may not be used.
  [[nodiscard]] bool apply() const { return apply_; }

  // `padded_decodes` >= batch.num_decodes: sequences that the token-wise ops compute (padding of
  // captured graphs). `context`: mean context of the decodes, in place of batch.decode_context.
  DeviceTime time(const Batch& batch, std::int64_t padded_decodes, double context);

 private:
  struct Attention {
    KernelOp op;  // dims of one rank
    Seconds time;
    double count = 0;
  };
  struct Skeleton {
    Seconds rest;        // all but attention and the part by sequences
    BasisSeconds basis;  // of the rest
    Seconds launch;      // before the first kernel can start
    Seconds total;       // of the step it was made from, launches included
    Seconds all_ops;     // sum of all its op times and gaps
    std::vector<Attention> prefill;
    std::vector<Attention> decode;
    DeviceTime tail;  // LM head and sampling
  };
  enum class Content : std::uint8_t { kPrefill, kDecode, kBoth };

  const Skeleton& skeleton(std::int64_t tokens, Content content);
  Skeleton make_skeleton(std::int64_t tokens, std::int64_t num_sampled, Content content) const;
  DeviceTime tail(std::int64_t num_sampled, Content content);
  [[nodiscard]] DeviceTime attention_time(const Attention& attention, std::int64_t batch,
                                          std::int64_t query, std::int64_t context) const;

  StepSetup setup_;
  bool apply_ = false;
  std::shared_mutex mutex_;
  std::map<std::pair<std::int64_t, Content>, Skeleton> skeletons_;
  std::map<std::pair<std::int64_t, Content>, DeviceTime> tails_;
};

// `value` rounded to `bits` significant bits; small values are kept.
std::int64_t round_bits(std::int64_t value, int bits);

}  // namespace orrery
