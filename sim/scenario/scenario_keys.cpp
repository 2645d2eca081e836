#include "sim/des/simulate.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/launch_mode.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"
#include "sim/scenario/lengths.h"
#include "sim/serve/router.h"

namespace orrery {

Section scenario_section() {
  using namespace key_makers;
  return {std::string_view(kScenarioSection),
          {key(Kind::kText, "question", "one sentence, the title of the report"),
           needed(or_part(key(Kind::kText, "model",
                              "what is served: a name of 'orrery models', a path, or a hub id"),
                          {"model"})),
           needed_without("disaggregation", machine_key("a name of 'orrery machines', or a path")),
           provider_key("whose kernel tables: a name of 'orrery providers', a path, or "
                        "none; left out, the newest of the engine's"),
           part("placement", {"placement"}, "replicas and how each is spread over GPUs"),
           part("disaggregation", {"disaggregation"}, "prefill and decode on GPUs of their own"),
           part("autoscaling", {"autoscaling"}, "replicas that come and go with the load"),
           part("engine", {"engine"}, "limits of the engine; its profile has the defaults"),
           part("kv_cache", {"kv_cache"}, "tiers of memory behind the GPUs' KV blocks"),
           part("moe", {"moe"}, "how routed experts are computed; the profile has the defaults"),
           choice("router", all_names(router_names()), "which replica a request goes to",
                  "round_robin"),
           needed(part("workload", {"workload"}, "the requests")),
           part("slo", {"slo"}, "what latencies are asked for"),
           part("cost", {"cost"}, "what GPUs cost their owner"),
           key(Kind::kAny, "search", "for 'orrery explore': keys with lists or ranges"),
           choice("step_level", texts_until(StepLevel::kAllRanks), "how steps are priced",
                  "closed_form"),
           or_part(choice("chosen_step", {"median_decode"}, "the step simulated in detail",
                          "median_decode"),
                   {"chosen_step"}),
           part("validate", {"validate"}, "what 'orrery validate' runs on GPUs"),
           whole("seed", "of drawn workloads, and of weights", 0)}};
}

std::vector<Section> step_sections() {
  using namespace key_makers;
  const auto limit = [](std::string_view name, std::string_view about) {
    return or_part(key(Kind::kTime, name, about), {"limits"});
  };
  return {
      {"slo",
       {limit("ttft", "time to first token"), limit("tpot", "time per output token"),
        limit("e2e", "time to the last token"),
        number("attainment", "share of requests that must meet their limits", 0, 1, true, "0.99"),
        number("goodput", "requests per second that meet them, at least", 0, kBillion, true)}},
      {"limits",
       {{.name = R"(^(each|mean|max|p[0-9]+(\.[0-9]+)?)$)",
         .kinds = {Kind::kTime},
         .about = "a limit of each request, or of a statistic of all",
         .is_pattern = true}}},
      {"cost",
       {number("usd_per_gpu_hour", "what a GPU costs you an hour", 0, 1e6, true),
        number("usd_per_kwh", "electricity; usd_per_gpu_hour is then without it", 0, 1e3, true),
        number("pue", "power of the site over that of its machines", 1, 10)}},
      {"chosen_step",
       {list(part("prefill", {"chunk"}, "chunks of prompts")),
        whole("num_decodes", "sequences that decode", 0),
        whole("decode_context", "tokens of all of them together", 0)}},
      {"chunk",
       {needed(whole("query", "new tokens")),
        whole("context", "tokens before them", 0, kEndless, "0")}},
      {"validate",
       {list(part("steps", {"step"}, "steps to time")),
        list(choice("modes", all_names(kStepModes), "how they are launched")),
        whole("repeats", "of each", 1, kEndless, "20"),
        key(Kind::kBoolean, "serve", "the workload is served as well", "true"),
        list(part("layers", {"layer"}, "layers of routed experts to time by themselves"))}},
      {"layer",
       {key(Kind::kText, "name", "in the results"),
        needed(whole("tokens", "of all GPUs of an instance together", 1, kMaxTokens)),
        choice("mode", {"graph", "eager"}, "how it is launched; without it as validate.modes"),
        part("moe", {"moe"}, "in place of the scenario's moe"),
        choice("expert_comm", all_names(kExpertCommNames), "in place of the placement's"),
        key(Kind::kBoolean, "split_shared_expert", "in place of the placement's")}},
      {"step",
       {key(Kind::kText, "name", "in the results"),
        list(whole("prefill", "new tokens of each chunk")),
        whole("prefill_context", "tokens before each chunk, beside decodes", 0),
        whole("decodes", "sequences that decode"),
        whole("context", "tokens of each before the step", 0)}},
  };
}

}  // namespace orrery
