#pragma once

// Layers of experts by themselves that checks hold against a reference: which model's, in which
// design, with which tokens and routing, on how many GPUs. No CUDA.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/launch_mode.h"

namespace orrery::tool {

// How tokens are made to choose experts: as the router's scores say; by scores in place of the
// router's; by a bias on the router's logits (kernels/execute/router_bias.h), which alone design
// persistent takes, whose kernel makes the scores.
enum class ImposedLoad : std::uint8_t { kNone, kScores, kBias };

struct MoeCase {
  std::string_view model;
  std::int64_t tokens = 64;  // of all ranks together
  MoeDesign design = MoeDesign::kShuffling;
  DType dtype = DType::kBf16;  // of experts and activations
  Mesh mesh = {};
  int streams = 1;
  bool fuses_scatter = false;
  bool fuses_gather = false;
  LaunchMode mode = LaunchMode::kGraph;
  ImposedLoad load = ImposedLoad::kNone;
  // The share of the k-th expert is proportional to k^-zipf, in an order drawn from the seed.
  double zipf = 0;
  std::uint64_t seed = 1;
};

// For people: "tiny_qwen3 bf16 tokens=67 shuffling dp=2 ep=2 eager comm=graph".
std::string to_text(const MoeCase& one);

// Configs of models/ by the names that cases have for them (kernels/CMakeLists.txt).
const std::map<std::string, ConfigFields, std::less<>>& layer_models();

// One of these; "<name>_tp8" has an eighth of the columns of each expert; the small ones
// tiny_qwen3, tiny_llama4 and tiny_deepseek are routed as theirs. Throws std::invalid_argument for
// others.
ModelConfig moe_model(std::string_view name);

// The layer's lowering, and its plan of one rank.
LoweringOptions moe_lowering(const MoeCase& one);
Plan moe_plan(const MoeCase& one);

// [tokens, experts] in (0, 1): tokens choose as the load says, drawn without replacement
// (Gumbel's maximum of log-shares; Efraimidis and Spirakis, IPL 97, 2006).
std::vector<float> imposed_scores(const MoeCase& one, std::int64_t experts);

}  // namespace orrery::tool
