#pragma once

// The plans that a question's `search` section spans. A shape is one choice of everything but the
// number of replicas; a plan is a shape and how many replicas of it.
//
//   search:
//     gpus: 8..64                     # GPUs of a plan in all; none: up to the machine's
//     placement: {tp: [1, 2, 4, 8], pp: auto, replicas: auto}
//     # or      {dp: [4, 8], ffn_instances: [0, 8], num_micro_batches: 1..4, replicas: auto}
//     disaggregation: {prefill: {tp: [2, 4], replicas: 1..4}, decode: {tp: [2, 4], replicas: auto}}
//     engine: {max_num_seqs: [256, 512], max_num_batched_tokens: 4096..16384*2}
//     provider: [vllm-0.24.0, sglang-0.5.14]
//
// `search` mirrors the scenario: any of its keys may stand there with a list, a range a..b, or a
// range with a factor a..b*2 in place of a value. `placement` and `disaggregation` are families of
// plans: where both stand, both are searched. Keys of a mesh may be `auto`: what the model and the
// machine allow (search_section.h). What a key of `search` says goes before the scenario's own.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/explore/search_section.h"
#include "sim/scenario/reader.h"
#include "sim/scenario/scenario.h"

namespace orrery {

struct Shape {
  std::vector<std::string> assignments;      // "placement.tp=4", in the order of the file
  std::shared_ptr<const Scenario> scenario;  // of one replica, or one of each side
  int gpus_per_replica = 0;                  // of the only side, or of the one that decodes
  int gpus_per_prefill = 0;                  // 0: not disaggregated

  [[nodiscard]] bool is_disaggregated() const { return gpus_per_prefill > 0; }
};

// A shape with replicas.
struct Candidate {
  std::size_t shape = 0;
  int replicas = 1;          // of the only side, or of the one that decodes
  int prefill_replicas = 0;  // 0: not disaggregated
  int num_gpus = 0;
  double usd_per_hour = 0;  // of its GPUs; 0: no price is known
};

// Shapes that cannot be, counted by reason: the message with its numbers left out.
struct LeftOut {
  std::string reason;
  std::int64_t count = 0;
  std::string example;  // assignments and the whole message of the first
};

struct Space {
  std::vector<Shape> shapes;
  std::vector<Candidate> candidates;  // by cost (GPUs where no price is known), then shape
  std::vector<LeftOut> left_out;      // most first
  std::int64_t num_combinations = 0;  // of shapes, legal or not
};

// Throws ScenarioError for a `search` that is none: an unknown key, an empty list, a range that
// goes down, nothing to choose from. The space does not depend on
// `threads`. One whose shapes are all left out is no error.
Space read_space(const YamlNode& root, const std::filesystem::path& file, const ProjectPaths& paths,
                 int threads = 1);

// Of its GPUs, those that have FFNs alone.
int num_ffn_gpus(const Space& space, const Candidate& candidate);
// The scenario of a candidate.
Scenario scenario_of(const Space& space, const Candidate& candidate);
// Its assignments with the number of replicas, as `--set` takes them.
std::vector<std::string> assignments_of(const Space& space, const Candidate& candidate);

}  // namespace orrery
