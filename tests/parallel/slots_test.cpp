// That the slots of kernel specs say what plans hold: the operands of every op of every plan, as
// models are lowered and as meshes split them, are of the slots of its kernel.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/public_configs.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::kDecode;
using testing::kPrefill;

const Batch kChunks{.prefill = {{512, 512}, {512, 0}}, .num_decodes = 32, .decode_context = 22'400};
const Batch kVerify{.prefill = {}, .num_decodes = 32, .decode_context = 22'400, .decode_query = 4};
const Batch kUnsampled{.prefill = {{.query = 512, .context = 0, .produces_token = false}},
                       .num_decodes = 0,
                       .decode_context = 0};

// Checks plans and keeps the kernels that it has met.
class Checker {
 public:
  void check(const Plan& plan, const std::string& what) {
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      seen_.insert(kernel->kernel);
      try {
        const OperandSlots slots = operand_slots(plan, op);
        ASSERT_EQ(slots.reads.size(), op.reads.size());
        ASSERT_EQ(slots.writes.size(), op.writes.size());
      } catch (const std::invalid_argument& error) {
        ADD_FAILURE() << what << ", op " << op.name << ": " << error.what();
        return;
      }
    }
  }

  [[nodiscard]] const std::set<std::string>& seen() const { return seen_; }

 private:
  std::set<std::string> seen_;
};

std::vector<LoweringOptions> options_of(const ModelConfig& model) {
  const auto weights = [](DType dtype) {
    return Precision{.weights = dtype, .expert_weights = {}};
  };
  const std::vector<Precision> precisions{
      {},
      testing::kFp8Precision,
      {.weights = DType::kFp8Block, .expert_weights = {}, .activations = DType::kFp8Block},
      {.weights = DType::kNvfp4,
       .expert_weights = {},
       .activations = DType::kNvfp4,
       .kv_cache = DType::kFp8},
      {.expert_weights = DType::kMxfp4},
      weights(DType::kInt4),
      weights(DType::kFp8)};
  std::vector<LoweringOptions> all;
  for (const Precision& precision : precisions) {
    for (const bool fuses : {false, true}) {
      all.push_back(
          {.precision = precision, .fuse_residual_norm = fuses, .fuse_norm_quant = fuses});
    }
  }
  if (model.kv_lora_rank > 0) {
    for (const MlaForm form : {MlaForm::kAbsorbed, MlaForm::kExpanded, MlaForm::kModule}) {
      if (form == MlaForm::kModule && model.index_topk > 0) continue;
      all.push_back({.precision = testing::kFp8Precision, .mla_form = form});
    }
  }
  if (model.kv_lora_rank == 0) all.push_back({.attention_form = AttentionForm::kPacked});
  if (model.num_experts == 0 || model.moe_bias) return all;
  const bool has_shared = model.shared_expert_intermediate_size > 0;
  for (const MoeDesign design : {MoeDesign::kPadding, MoeDesign::kSlicing,
                                 MoeDesign::kConcatenation, MoeDesign::kShuffling}) {
    const bool scatters = has_shared && design == MoeDesign::kShuffling;
    all.push_back({.moe_design = design, .fuse_scatter_add = scatters});
    if (design == MoeDesign::kShuffling) all.push_back({.moe_design = design, .fuse_gather = true});
    all.push_back({.precision = testing::kFp8Precision, .moe_design = design, .moe_streams = 2});
  }
  const LoweringOptions persistent{.moe_design = MoeDesign::kPersistent};
  try {
    check_moe_design(model, persistent);
    all.push_back(persistent);
  } catch (const std::invalid_argument&) {  // its router or experts are of another kind
  }
  return all;
}

std::vector<Mesh> meshes_of(const ModelConfig& model, MoeDesign design) {
  std::vector<Mesh> meshes{{.tp = 2, .sp = true}, {.cp = 2}};
  if (model.num_experts == 0 || design == MoeDesign::kFused) {
    meshes.push_back({.dp = 2, .tp = 2});
    meshes.push_back({.dp = 2, .tp = 4, .pp = 2, .sp = true, .num_micro_batches = 2});
  }
  if (model.num_experts == 0) return meshes;
  if (design == MoeDesign::kFused) {
    meshes.push_back({.tp = 4, .ep = 2});
    meshes.push_back({.dp = 4, .tp = 2, .ep = 8, .sp = true});
    meshes.push_back({.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kAllGather});
    meshes.push_back({.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kDeepEp});
  } else if (design == MoeDesign::kPersistent) {
    return {{.dp = 2, .ep = 2}, {.dp = 2, .ep = 2, .pp = 2, .num_micro_batches = 2}};
  } else if (design == MoeDesign::kShuffling) {
    meshes.push_back({.tp = 4, .ep = 2});
    for (const ExpertComm comm :
         {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kDedup, ExpertComm::kDedupGraph}) {
      meshes.push_back({.dp = 2, .tp = 2, .ep = 2, .expert_comm = comm});
    }
  }
  return meshes;
}

// What a mesh cannot hold is refused, which other tests are about.
bool is_split(const ModelConfig& model, const LoweringOptions& options, const Mesh& mesh) {
  if (mesh.dp > 1 && (options.fuse_scatter_add || options.fuse_gather)) return false;
  if (mesh.cp > 1 && options.attention_form == AttentionForm::kPacked) return false;
  if (mesh.cp > 1 && model.kv_lora_rank > 0 && options.mla_form != MlaForm::kAuto) return false;
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

std::vector<std::pair<std::string, ModelConfig>> models() {
  std::vector<std::pair<std::string, ModelConfig>> all{
      {"small llama", testing::small_llama()}, {"small deepseek", testing::small_deepseek()}};
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    all.emplace_back(file, model_config(file, testing::config_fields(file)));
  }
  // Forms of layers that no shipped model has.
  const std::set<std::string> others{"google/gemma-2-9b", "allenai/OLMo-2-1124-13B",
                                     "tiiuae/falcon-40b", "nvidia/Nemotron-H-8B-Base-8K"};
  for (const testing::PublicConfig& config : testing::public_configs()) {
    if (!others.contains(config.id)) continue;
    all.emplace_back(config.id, model_config(config.id, config.fields));
  }
  return all;
}

bool keeps_states(const ModelConfig& model) {
  return std::ranges::any_of(model.layers,
                             [](const LayerConfig& layer) { return layer.state_bytes > 0; });
}

TEST(Slots, HoldTheOperandsOfEveryOpOfEveryPlan) {
  Checker checker;
  for (const auto& [name, model] : models()) {
    const std::vector<LoweringOptions> all = options_of(model);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string what = name + ", options " + std::to_string(i);
      const bool has_own_ops =
          all[i].moe_design != MoeDesign::kFused && all[i].moe_design != MoeDesign::kPersistent;
      if (model.has_shared_expert_gate && has_own_ops) continue;
      for (const Batch& batch : {kDecode, kPrefill, kChunks, kUnsampled}) {
        checker.check(lower(model, batch, all[i]), what);
      }
      if (!keeps_states(model)) checker.check(lower(model, kVerify, all[i]), what);
      const Plan whole = lower(model, kChunks, all[i]);
      for (const Mesh& mesh : meshes_of(model, all[i].moe_design)) {
        if (!is_split(model, all[i], mesh)) continue;
        checker.check(parallelize(whole, mesh), what + ", dp " + std::to_string(mesh.dp) + " tp " +
                                                    std::to_string(mesh.tp) + " ep " +
                                                    std::to_string(mesh.ep));
      }
    }
  }
  for (const KernelSpec& spec : kernel_specs()) {
    EXPECT_TRUE(checker.seen().contains(std::string(spec.name))) << spec.name;
  }
}

TEST(Slots, HoldTheOperandsOfTheGoldenPlans) {
  Checker checker;
  const std::filesystem::path golden = std::filesystem::path(ORRERY_SOURCE_DIR) / "tests/golden";
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".plan") || file == "example.plan") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    checker.check(parse_plan(text.str()), file);
  }
  EXPECT_TRUE(checker.seen().contains("grouped_gemm"));
}

}  // namespace
}  // namespace orrery
