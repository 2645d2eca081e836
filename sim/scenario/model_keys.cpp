#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"

namespace orrery {

std::vector<Section> model_sections() {
  using namespace key_makers;
  const Names formats = texts_until(DType::kInt32);
  return {
      {"model",
       {needed(key(Kind::kText, "config",
                   "a name of 'orrery models', a config.json or its directory, or a hub id")),
        key(Kind::kText, "as", "the model_type to simulate it as, where its own is not known"),
        whole("layers", "only the first N layers"),
        choice("weights", formats, "format of weights; without it the checkpoint's"),
        choice("expert_weights", formats, "format of routed experts; without it as weights"),
        choice("activations", formats, "format that products run in"),
        choice("kv_cache", formats, "format of keys and values"),
        choice("lm_head", formats, "format of the last product"),
        or_part(choice("expert_load", all_names(kExpertLoadNames),
                       "how evenly tokens choose experts", "power_law_1.01"),
                {"expert_load"})}},
      {"expert_load",
       {number("zipf", "shares fall as this power of an expert's rank", 0, 16),
        key(Kind::kText, "trace",
            "a CSV of expert,count, of interval,expert,count, or of the experts of each token"),
        whole("seed", "which expert has which rank", 0, kEndless, "1"),
        part("drift", {"drift"}, "which experts are chosen most changes with time")}},
      {"drift",
       {needed(key(Kind::kTime, "interval", "how long a load stays")),
        number("share", "part of the experts that exchange their popularity with each interval", 0,
               1, /*is_above=*/true)}},
      {"moe",
       {choice("design", all_names(kMoeDesignNames), "how routed experts are computed"),
        whole("streams", "2: the shared expert on a second stream", 1, 2),
        whole("chunks", "parts of a rank's tokens: one computes while others are on their way", 1,
              kMostMoeChunks, "1"),
        key(Kind::kBoolean, "fuse_scatter_add", "rows are added by the second grouped gemm"),
        key(Kind::kBoolean, "fuse_gather", "rows are gathered by the first grouped gemm"),
        key(Kind::kBoolean, "shared_inside", "design persistent computes the shared expert too"),
        number("capacity_factor",
               "design persistent: rows that an expert takes of a rank, over those of even choices",
               0, kMostCapacityFactor, /*is_above=*/true),
        choice("experts", all_names(kExpertOrderNames), "which rank holds which experts"),
        choice("backend", all_names(kMoeBackendNames),
               "design fused: whose rows price experts; auto: what the tables' engine ran", "auto"),
        part("eplb", {"eplb"}, "experts are placed anew by their load while the service runs")}},
      {"eplb",
       {whole("step_interval", "steps from one rebalance to the next", 1, kBillion, "3000"),
        whole("window_size", "the last steps, whose load places experts", 1, kBillion, "1000"),
        whole("layers_per_step", "layers whose experts move at the end of a step; without it all",
              1, kBillion),
        key(Kind::kTime, "layer_overhead", "host time of each layer that moves, beside the links",
            "0 s")}},
  };
}

}  // namespace orrery
