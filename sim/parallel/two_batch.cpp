// Two-batch overlap (DeepSeek-V3, arXiv 2412.19437, section 3.4; SGLang's two-batch overlap, vLLM's
// dual batch overlap): two micro-batches of a step on one compute stream take turns wherever one
// waits for its collectives, which are on a stream of their own:
//
//   0   A attention | B attention | A experts  | B experts | A attention ..
//   2               | A dispatch  | B dispatch | A combine | B combine ..

#include "sim/parallel/expert_flows.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/turns.h"

namespace orrery {
namespace {

constexpr int kBatches = 2;

bool sends(const Plan& /*plan*/, const Op& op) { return is_transfer(op); }

}  // namespace

bool two_batch_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.two_batch_overlap && mesh.num_micro_batches == kBatches;
}

Plan two_batch_pass(const Plan& plan, const Mesh& /*mesh*/) {
  return take_turns(
      plan, {.num_batches = kBatches, .is_awaited = sends, .awaited_stream = kCollectiveStream});
}

}  // namespace orrery
