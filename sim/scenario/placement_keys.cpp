#include <utility>

#include "sim/machine/machine.h"
#include "sim/scenario/field_keys.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"
#include "sim/serve/router.h"

namespace orrery {
namespace {

using namespace key_makers;

// What one rank group has, the prefill and decode side of a disaggregated service too.
std::vector<Key> placement_keys() {
  return with_fields({whole("replicas", "copies behind the router", 1, kMaxGpus, "1")},
                     mesh_fields());
}

}  // namespace

std::vector<Section> placement_sections() {
  std::vector<Key> side = joined(
      placement_keys(),
      {whole("max_num_seqs", "as in engine, of this side", 1, kBillion),
       whole("max_num_batched_tokens", "as in engine, of this side", 1, kBillion),
       number("gpu_memory_utilization", "as in engine, of this side", 0, 1, /*is_above=*/true),
       choice("kv_cache", texts_until(DType::kInt32), "format of keys and values on this side"),
       choice("weights", texts_until(DType::kInt32), "as in model, of this side"),
       choice("expert_weights", texts_until(DType::kInt32), "as in model, of this side"),
       choice("activations", texts_until(DType::kInt32), "as in model, of this side"),
       machine_key(
           "one of its own, GPUs of another kind; without it the scenario's, with the other "
           "side unless that has one"),
       provider_key("as in the scenario, of this side"),
       part("cost", {"cost"}, "as in the scenario, of this side")});
  return {
      {"scenario_machine",
       {needed(key(Kind::kText, "name", "a name of 'orrery machines', or a path")),
        whole("num_gpus", "GPUs of a cluster of another size", 1, kMaxGpus)}},
      {"placement", joined(placement_keys(), {part("ffn", {"ffn_side"},
                                                   "FFNs apart on a machine of their own, GPUs of "
                                                   "another kind")})},
      {"ffn_side",
       {needed(machine_key("that of FFNs and experts; attention is on the scenario's")),
        provider_key("as in the scenario, of FFNs"),
        part("cost", {"cost"}, "as in the scenario, of FFNs"),
        part("transfer", {"ffn_transfer"}, "how rows move between both machines")}},
      {"ffn_transfer",
       {key(Kind::kDataRate, "rate",
            "of a GPU, instead of its network's; needed unless both machines have a network"),
        key(Kind::kTime, "latency", "instead of the networks'")}},
      {"disaggregation",
       {needed(part("prefill", {"side"}, "the replicas that compute prompts")),
        needed(part("decode", {"side"}, "the replicas that compute all tokens but the first")),
        part("transfer", {"transfer"}, "how KV blocks move between them")}},
      {"side", std::move(side)},
      {"transfer",
       {key(Kind::kDataRate, "rate",
            "instead of what is measured, or the links' rate; needed between two machines unless "
            "both have a network"),
        key(Kind::kTime, "latency", "likewise"),
        key(Kind::kBoolean, "layerwise", "layers move while those behind them are computed",
            "false")}},
      {"autoscaling",
       {whole("min_replicas", "at least", 1, kMaxGpus, "1"),
        needed(whole("max_replicas", "at most", 1, kMaxGpus)),
        needed(part("target", {"scaling_target"}, "what replicas are added or removed for")),
        key(Kind::kTime, "interval", "between decisions", "15 s"),
        needed(key(Kind::kTime, "start_up", "until a new replica takes requests")),
        key(Kind::kTime, "scale_down_delay", "the most replicas asked for in this time stay",
            "300 s"),
        number("tolerance", "no change while the metric is this near to its target", 0, 1, false,
               "0.1")}},
      {"scaling_target",
       {needed(choice("metric", all_names(kScalingMetricNames), "of a replica, the mean")),
        needed(number("value", "that it should have", 0, kBillion, true))}},
  };
}

}  // namespace orrery
