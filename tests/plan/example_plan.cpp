#include "tests/plan/example_plan.h"

#include <string>

namespace orrery {

ExamplePlan example_plan() {
  ExamplePlan e{};
  Plan& p = e.plan;
  const GroupId both = p.add_group({0, 1});
  const GroupId first = p.add_group({0});
  const auto tensor = [&](std::string name, DType dtype, std::vector<Axis> axes, TensorRole role,
                          GroupId ranks) {
    return p.add_tensor({std::move(name), dtype, std::move(axes), role, ranks});
  };
  const auto wide = std::vector<Axis>{{"tokens", kTokens}, {"hidden", kHidden}};
  using enum TensorRole;
  e.ids = tensor("ids", DType::kInt32, {{"tokens", kTokens}}, kInput, both);
  e.table =
      tensor("embed.weight", DType::kBf16, {{"vocab", kVocab}, {"hidden", kHidden}}, kWeight, both);
  e.residual = tensor("residual", DType::kBf16, wide, kActivation, both);
  e.norm_weight = tensor("norm.weight", DType::kBf16, {{"hidden", kHidden}}, kWeight, both);
  e.normed = tensor("normed", DType::kFp8, wide, kActivation, both);
  e.weight =
      tensor("proj.weight", DType::kFp8, {{"hidden", kHidden}, {"heads", kHidden}}, kWeight, both);
  e.partial = tensor("partial", DType::kBf16, wide, kActivation, both);
  e.reduced = tensor("reduced", DType::kBf16, wide, kActivation, both);
  e.logits =
      tensor("logits", DType::kBf16, {{"seqs", kTokens}, {"vocab", kVocab}}, kActivation, first);
  e.tokens = tensor("next ids", DType::kInt32, {{"seqs", kTokens}}, kOutput, first);

  const auto op = [&](std::string name, OpBody body, GroupId ranks, int stream, TensorViews reads,
                      TensorViews writes, std::vector<OpId> after = {}) {
    return p.add_op({std::move(name), std::move(body), ranks, stream, std::move(reads),
                     std::move(writes), std::move(after)});
  };
  const OpId schedule = op("schedule", HostOp{HostKind::kScheduler}, both, 0, {}, {});
  e.embed = op("embed",
               KernelOp{"embedding",
                        DType::kBf16,
                        {{"tokens", kTokens, "tokens"},
                         {"hidden", kHidden, "hidden"},
                         {"vocab", kVocab, "vocab"}}},
               both, 0, {e.ids, e.table}, {e.residual}, {schedule});
  e.norm = op(
      "norm",
      KernelOp{
          "rms_norm", DType::kFp8, {{"tokens", kTokens, "tokens"}, {"hidden", kHidden, "hidden"}}},
      both, 0, {e.residual, e.norm_weight}, {e.normed});
  e.gemm = op("proj",
              KernelOp{"gemm",
                       DType::kFp8,
                       {{"m", kTokens, "tokens"}, {"n", kHidden, ""}, {"k", kHidden, "heads"}}},
              both, 0, {e.normed, e.weight}, {e.partial});
  e.reduce = op("proj.all_reduce",
                CommOp{CollectiveKind::kAllReduce, DType::kBf16, Bytes(2.0 * kTokens * kHidden)},
                both, 1, {e.partial}, {e.reduced});
  e.add = op("add",
             KernelOp{"residual_add",
                      DType::kBf16,
                      {{"tokens", kTokens, "tokens"}, {"hidden", kHidden, "hidden"}}},
             both, 0, {e.residual, e.reduced}, {e.residual});
  e.head = op("lm_head",
              KernelOp{"gemm",
                       DType::kBf16,
                       {{"m", kTokens, "seqs"}, {"n", kVocab, "vocab"}, {"k", kHidden, "hidden"}}},
              first, 0, {e.residual, e.table}, {e.logits});
  e.sample =
      op("sample",
         KernelOp{"sample", DType::kBf16, {{"seqs", kTokens, "seqs"}, {"vocab", kVocab, "vocab"}}},
         first, 0, {e.logits}, {e.tokens}, {e.reduce});
  p.add_repeat({e.norm, e.add + 1, kLayers});
  return e;
}

}  // namespace orrery
