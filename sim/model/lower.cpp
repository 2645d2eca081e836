#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/model/blocks/blocks.h"
#include "sim/model/layer_runs.h"
#include "sim/model/lowering.h"
#include "sim/model/step_shape.h"

namespace orrery {
namespace {

// Alternating kinds of layers repeat after at most this many (Llama 4 and Step-3.7: four).
constexpr std::int64_t kMaxPeriod = 8;

}  // namespace

std::vector<LayerRun> layer_runs(std::span<const LayerConfig> layers) {
  std::vector<LayerRun> runs;
  const auto num_layers = static_cast<std::int64_t>(layers.size());
  const auto layer = [&](std::int64_t i) -> const LayerConfig& {
    return layers[static_cast<std::size_t>(i)];
  };
  for (std::int64_t first = 0; first < num_layers;) {
    LayerRun best{.first = first, .period = 1, .count = 1};
    for (std::int64_t period = 1; period <= kMaxPeriod; ++period) {
      std::int64_t end = first + period;
      while (end < num_layers && layer(end) == layer(end - period)) ++end;
      const std::int64_t count = (end - first) / period;
      if (count >= 2 && count * period > best.count * best.period) {
        best = {.first = first, .period = period, .count = count};
      }
      if (end == num_layers) break;  // a longer period covers no more
    }
    runs.push_back(best);
    first += best.period * best.count;
  }
  return runs;
}

// Layers of a run are named by the first layer they stand for: layers.3.qkv_proj.
Plan lower(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options) {
  if (model.layers.empty()) {
    throw std::invalid_argument("model \"" + model.name + "\" has no layers");
  }
  Lowering step(model, shape, options);
  lower_embedding(step);
  for (const LayerRun& run : layer_runs(model.layers)) {
    const auto first_op = static_cast<OpId>(step.plan.ops().size());
    for (std::int64_t i = run.first; i < run.first + run.period; ++i) {
      const LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
      step.begin_layer("layers." + std::to_string(i) + ".");
      attention_block(layer.attention)(step, layer);
      ffn_block(layer.ffn)(step, layer);
    }
    step.plan.add_repeat(
        {.first = first_op, .last = static_cast<OpId>(step.plan.ops().size()), .count = run.count});
  }
  step.set_prefix("");
  lower_lm_head(step);
  return std::move(step.plan);
}

Plan lower(const ModelConfig& model, const Batch& batch, const LoweringOptions& options) {
  return lower(model, step_shape(batch), options);
}

void attention_dims(const ModelConfig& model, const std::vector<LayerRun>& runs,
                    const StepShape& shape, const LoweringOptions& options, bool wants_names,
                    AttentionDims& result) {
  constexpr std::size_t kSizesOfLayer = 64;  // or so: one allocation is enough
  result.sizes.clear();
  result.sizes.reserve(kSizesOfLayer * runs.size());
  result.ops.clear();
  Lowering step(model, shape, options, result, wants_names);
  for (const LayerRun& run : runs) {
    for (std::int64_t i = run.first; i < run.first + run.period; ++i) {
      const LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
      step.begin_layer(wants_names ? "layers." + std::to_string(i) + "." : "");
      attention_block(layer.attention)(step, layer);
    }
  }
}

}  // namespace orrery
