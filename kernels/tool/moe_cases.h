#pragma once

// The layers that `orrery-gpu moe` runs: which model's, in which design, with which tokens and
// routing, on how many GPUs. No CUDA.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/launch_mode.h"

namespace orrery::tool {

inline constexpr std::string_view kNoJitter = "none";

// One line of a file of cases: a model's name, then key=value in any order, each with a default:
//
//   scout design=shuffling tokens=64 dtype=bf16 mode=graph streams=1 fuse=0 load=uniform seed=1
//   qwen3_30b design=shuffling tokens=128 tp=1 dp=2 ep=2 comm=graph mode=graph load=zipf:1.0
//
// tokens  of all ranks together
// fuse    1: the second grouped gemm adds rows to the shared expert's result (fuse_scatter_add)
// gather  1: the first one reads rows where tokens have them (fuse_gather)
// load    router: experts as the router's scores say; uniform, zipf:S (share of the k-th expert
//         proportional to k^-S, in an order drawn from the seed)
// impose  how it is: scores, that choose so in place of the router's; bias, on the router's logits
//         (kernels/execute/router_bias.h), of which uniform needs none. Design persistent, whose
//         kernel makes the scores, takes bias alone and has it by default, others scores
// comm    how tokens reach experts on other data-parallel ranks (ExpertComm); eager, copies and
// dedup
//         read counts on the host, so with mode=eager alone
// chunks  parts of a rank's tokens, of which one computes while others are on their way
// (moe_chunks)
// split   1: the last gemm of the shared expert runs beside the way back, 0: all of it beside the
//         way there (Mesh::split_shared_expert)
// capacity  of design persistent, 100 times the capacity factor
// late    us by which a rank comes late to the layer, and behind a colon to the exchange that
//         brings results back: 50 or 50:20
// who     last: the last rank is late; all: each is, which shows what resting does to clocks
// jitter  none: the last rank is late, by as much in every layer; supercomputer, vm: a rank that
//         the seed draws, by the multiples of `late` that are published for exchanges
//         (sim/cost/moe_stragglers.h), one for each set of weights
struct MoeCase {
  std::string text;  // as given, less spaces that mean nothing
  std::string model;
  MoeDesign design = MoeDesign::kShuffling;
  DType dtype = DType::kBf16;  // of experts and activations
  std::int64_t tokens = 64;
  Mesh mesh;
  std::string comm;  // as given, empty: none was
  int streams = 1;
  bool fuses_scatter = false;
  bool fuses_gather = false;
  bool shared_inside = false;         // of design persistent
  std::int64_t capacity_percent = 0;  // likewise
  LaunchMode mode = LaunchMode::kGraph;
  std::string load = "router";
  std::optional<bool> imposes_bias = std::nullopt;  // as given: else scores
  Seconds late;
  Seconds late_results;
  bool are_all_late = false;  // else the last rank, or one that is drawn
  std::string jitter = std::string(kNoJitter);
  std::uint64_t seed = 1;
};

// Throws std::invalid_argument for an unknown model, key or value, with the nearest known.
MoeCase parse_moe_case(std::string_view line);
// Empty lines and lines that start with "#" are left out. Throws with file and line.
std::vector<MoeCase> read_moe_cases(const std::filesystem::path& file);

// Configs of models/ by the names that cases have for them: scout, maverick, qwen3_30b, qwen3_235b,
// mixtral_8x7b, deepseek_v3, deepseek_v2_lite, glm_45_air (kernels/CMakeLists.txt).
const std::map<std::string, ConfigFields, std::less<>>& layer_models();

// One of these; "<name>_tp8" has an eighth of the columns of each expert; the small ones
// tiny_qwen3, tiny_llama4 and tiny_deepseek are routed as theirs; flash_8, _16, _32, _64
// and _128 are 2 of so many experts of 2,048 columns, deepseek_v3_16 and _32 are 8 of so many of
// DeepSeek-V3's. Throws std::invalid_argument for others.
ModelConfig moe_model(std::string_view name);

// How the load is imposed; neither of "router".
bool imposes_scores(const MoeCase& one);
bool imposes_bias(const MoeCase& one);

// The layer's lowering, and its plan of one rank.
LoweringOptions moe_lowering(const MoeCase& one);
Plan moe_plan(const MoeCase& one);

// `count` layers one after the other, each with weights of its own: names end in "#<layer>", and
// none begins before the one ahead has ended, on whatever streams. The layer itself where count
// is 1.
Plan chained(const Plan& layer, int count);
// Name of a tensor of its last layer, and of its output.
std::string chained_name(const std::string& name, int count);
std::string chained_output(int count);

// x [tokens, hidden], uniform with variance 1.
std::vector<float> layer_input(const MoeCase& one, std::int64_t hidden);
// [tokens, experts] in (0, 1): tokens choose as the load says, drawn without replacement
// (Gumbel's maximum of log-shares; Efraimidis and Spirakis, IPL 97, 2006).
std::vector<float> imposed_scores(const MoeCase& one, std::int64_t experts);

}  // namespace orrery::tool
