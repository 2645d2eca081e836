// Buffers of plans of models: nothing alive overlaps, and little more than what is alive at once is
// taken.

#include "sim/memory/buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::kDecode;

const Batch kMixed{.prefill = {{100, 0}, {37, 512}}, .num_decodes = 5, .decode_context = 5'000};
const std::vector<Mesh> kMeshes{{},
                                {.tp = 2},
                                {.tp = 4},
                                {.dp = 2},
                                {.tp = 2, .sp = true},
                                {.pp = 2},
                                {.tp = 2, .pp = 2, .sp = true, .num_micro_batches = 2},
                                {.dp = 2, .tp = 2, .pp = 2}};

// First and last op that uses a tensor.
struct BufferUse {
  std::size_t first = 0;
  std::size_t last = 0;
  bool is_used = false;
};

struct Occupant {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  BufferUse use;
};

// Tensors by the name they have before `unroll` adds "#<copy>".
std::string source_name(const std::string& name) { return name.substr(0, name.find('#')); }

// Uses are told from the plan with its repeats written out, so without what sim/plan/liveness.h
// says of them.
void expect_no_overlap(const Plan& plan, int rank) {
  const BufferPlan buffers = plan_buffers(plan, rank);
  const Plan unrolled = unroll(plan);
  std::map<std::string, std::size_t> ids;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) ids[printed_name(plan.tensors()[i])] = i;

  std::vector<BufferUse> uses(unrolled.tensors().size());
  for (std::size_t at = 0; at < unrolled.ops().size(); ++at) {
    const Op& op = unrolled.ops()[at];
    if (!unrolled.contains(op.ranks, rank)) continue;
    for (const auto* tensors : {&op.reads, &op.writes}) {
      for (const TensorId id : *tensors) {
        BufferUse& use = uses[static_cast<std::size_t>(id)];
        if (!use.is_used) use = {.first = at, .last = at, .is_used = true};
        use.last = at;
      }
    }
  }
  std::vector<Occupant> occupants;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const Tensor& tensor = unrolled.tensors()[i];
    const std::size_t source = ids.at(source_name(printed_name(tensor)));
    const std::int64_t offset = buffers.offsets[source];
    if (offset < 0 || !uses[i].is_used) continue;
    if (tensor.role == TensorRole::kInput) uses[i].first = 0;
    if (tensor.role == TensorRole::kOutput) uses[i].last = unrolled.ops().size();
    occupants.push_back({offset, static_cast<std::int64_t>(bytes_of(tensor).value()), uses[i]});
    if (buffers.scales[source] >= 0) {
      const std::int64_t rows = num_elements(tensor) / tensor.axes.back().size;
      occupants.push_back({buffers.scales[source], 4 * rows, uses[i]});
    }
  }
  for (std::size_t i = 0; i < occupants.size(); ++i) {
    const Occupant& a = occupants[i];
    ASSERT_LE(a.offset + a.bytes, buffers.arena_bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const Occupant& b = occupants[j];
      const bool live_together = a.use.first <= b.use.last && b.use.first <= a.use.last;
      const bool share_bytes = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      ASSERT_FALSE(live_together && share_bytes) << "rank " << rank;
    }
  }
}

TEST(PlanBuffers, NothingAliveOverlapsInPlansOfSmallModels) {
  for (const ModelConfig& model : {testing::small_llama(), testing::small_deepseek()}) {
    for (const Precision& precision : {Precision{}, testing::kFp8Precision}) {
      for (const bool fuses : {true, false}) {
        for (const Batch& batch : {kDecode, kMixed}) {
          const Plan whole = lower(
              model, batch,
              {.precision = precision, .fuse_residual_norm = fuses, .fuse_norm_quant = fuses});
          for (const Mesh& mesh : kMeshes) {
            const Plan plan = parallelize(whole, mesh);
            for (int rank = 0; rank < plan.num_ranks(); ++rank) expect_no_overlap(plan, rank);
          }
        }
      }
    }
  }
}

// Both halves of a step multiply by weights that are gathered in between, beside rows of their own.
TEST(PlanBuffers, NothingAliveOverlapsWhereHalvesReadGatheredWeights) {
  for (const ModelConfig& model : {testing::small_llama(), testing::small_deepseek()}) {
    for (const Batch& batch : {kDecode, kMixed}) {
      const Plan whole = lower(model, batch, {.moe_design = MoeDesign::kShuffling});
      for (Mesh mesh : {Mesh{.dp = 2, .tp = 2, .o_proj = OProjection::kSharded},
                        Mesh{.dp = 2,
                             .tp = 2,
                             .num_micro_batches = 2,
                             .o_proj = OProjection::kSharded,
                             .two_batch_overlap = true}}) {
        mesh.ep = model.num_experts > 0 ? 4 : 1;
        mesh.expert_comm = ExpertComm::kGraph;
        const Plan plan = parallelize(whole, mesh);
        for (int rank = 0; rank < plan.num_ranks(); ++rank) expect_no_overlap(plan, rank);
      }
    }
  }
}

TEST(PlanBuffers, PartsOfOneInputFollowEachOtherInPlansOfModels) {
  int num_joined = 0;
  for (const Mesh& mesh : kMeshes) {
    const Plan plan = parallelize(
        lower(testing::small_llama(), kMixed, {.precision = testing::kFp8Precision}), mesh);
    for (int rank = 0; rank < plan.num_ranks(); ++rank) {
      const BufferPlan buffers = plan_buffers(plan, rank);
      for (const Op& op : plan.ops()) {
        const auto* kernel = std::get_if<KernelOp>(&op.body);
        if (kernel == nullptr || kernel->kernel != "quantize" || !plan.contains(op.ranks, rank)) {
          continue;
        }
        ASSERT_EQ(op.reads.size(), 2U);
        const auto prefill = static_cast<std::size_t>(op.reads[0]);
        const auto decode = static_cast<std::size_t>(op.reads[1]);
        EXPECT_EQ(buffers.offsets[decode],
                  buffers.offsets[prefill] +
                      static_cast<std::int64_t>(bytes_of(plan.tensors()[prefill]).value()));
        ++num_joined;
      }
    }
  }
  EXPECT_GT(num_joined, 0);
}

// Logits of all micro-batches on a rank, which are kept.
double logits_bytes(const Plan& plan, int rank) {
  double bytes = 0;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "sample" || !plan.contains(op.ranks, rank)) continue;
    bytes += bytes_of(plan.tensors()[static_cast<std::size_t>(op.reads.front())]).value();
  }
  return bytes;
}

// At least what is alive at once. At most 1 % more, 256 bytes for each tensor of the step, and the
// logits of several micro-batches.
TEST(PlanBuffers, TheArenaIsLittleMoreThanWhatIsAliveAtOnce) {
  const std::vector<Batch> batches{
      kDecode,
      kMixed,
      {.prefill = {{8192, 0}}, .num_decodes = 0, .decode_context = 0},
      {.prefill = {}, .num_decodes = 1, .decode_context = 512},
      {.prefill = {{2048, 4096}}, .num_decodes = 256, .decode_context = 256'000}};
  for (const char* name : {"meta-llama--Meta-Llama-3.1-8B", "meta-llama--Meta-Llama-3.1-70B"}) {
    const ModelConfig model = testing::shipped_model(name);
    for (const Batch& batch : batches) {
      for (const Mesh& mesh : kMeshes) {
        const Plan plan = parallelize(lower(model, batch, {}), mesh);
        for (int rank = 0; rank < plan.num_ranks(); ++rank) {
          const double least = memory_of(plan, rank).activations.value();
          const auto taken = static_cast<double>(plan_buffers(plan, rank).arena_bytes);
          EXPECT_GE(taken, least);

          const double kept = mesh.num_micro_batches > 1 ? logits_bytes(plan, rank) : 0;
          const double most =
              1.01 * least + 256.0 * static_cast<double>(plan.tensors().size()) + kept;
          EXPECT_LE(taken, most) << name << " tp " << mesh.tp << " pp " << mesh.pp << " sp "
                                 << mesh.sp << " tokens " << num_tokens(batch) << " ratio "
                                 << taken / least;
        }
      }
    }
  }
}

TEST(PlanBuffers, TheSamePlanHasTheSameBuffers) {
  const Plan plan = parallelize(lower(testing::small_deepseek(), kMixed, {}), {.tp = 2});
  const BufferPlan first = plan_buffers(plan, 1);
  const BufferPlan second = plan_buffers(parse_plan(to_text(plan)), 1);
  EXPECT_EQ(first.offsets, second.offsets);
  EXPECT_EQ(first.scales, second.scales);
  EXPECT_EQ(first.arena_bytes, second.arena_bytes);
}

TEST(PlanBuffers, EveryShippedModelHasThem) {
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    const Plan plan = lower(model_config(file, testing::config_fields(file)), kMixed,
                            {.precision = testing::kFp8Precision});
    EXPECT_GE(static_cast<double>(plan_buffers(plan, 0).arena_bytes),
              memory_of(plan, 0).activations.value())
        << file;
  }
}

}  // namespace
}  // namespace orrery
