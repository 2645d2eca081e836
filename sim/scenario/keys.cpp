#include "sim/scenario/keys.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "sim/des/simulate.h"
#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/plan/launch_mode.h"
#include "sim/scenario/engine_profile.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/profile_keys.h"
#include "sim/scenario/speculative_spec.h"
#include "sim/serve/config_fields.h"
#include "sim/serve/kv_tier_config.h"
#include "sim/serve/router.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {

namespace {

using namespace key_makers;

Names topology_names() {
  Names found;
  for (const TopologyKind& kind : topology_kinds()) found.push_back(kind.name);
  return found;
}

struct About {
  std::string_view name;
  std::string_view about;
};

constexpr About kAboutFields[] = {
    {"dp", "data-parallel ranks of attention in a replica"},
    {"tp", "GPUs that share each layer (tensor parallel)"},
    {"cp", "GPUs that share a sequence (context parallel)"},
    {"ep", "GPUs over which routed experts are spread"},
    {"pp", "pipeline stages, each with a part of the layers"},
    {"sp", "sequence parallel: norms on a part of the tokens each"},
    {"num_micro_batches", "parts of a batch that pass a pipeline, or FFNs apart, one by one"},
    {"ffn_instances", "groups of GPUs for FFNs and experts alone; ep is over them"},
    {"ffn_tp", "GPUs of such a group"},
    {"ffn_schedule", "whether micro-batches are under way together or one by one"},
    {"expert_comm", "how tokens reach the GPUs of their experts"},
    {"dp_rows", "whether a dp rank has its own sequences' rows or an even part of all"},
    {"cp_weights", "weights behind attention, over the cp ranks"},
    {"cp_prefill", "how a prompt's parts meet each other's keys and values"},
    {"cp_decodes", "whether a cp rank has the rows of all decodes or its part of them"},
    {"two_batch_overlap", "a step in two halves, one computes while the other sends"},
    {"num_redundant_experts", "copies of the experts that are chosen most"},
    {"max_num_seqs", "sequences of a step, of a data-parallel rank"},
    {"max_num_batched_tokens", "tokens of a step, of a data-parallel rank"},
    {"block_size", "tokens of a KV block"},
    {"gpu_memory_utilization", "share of a GPU's memory that the engine takes"},
    {"enable_chunked_prefill", "prompts are cut to the tokens that are left of a step"},
    {"enable_prefix_caching", "KV blocks of prefixes are kept for later prompts"},
    {"max_model_len", "longest prompt and answer together; without it the model's"},
    {"stream_interval", "tokens sent in a message after the first"},
    {"dp_router", "which data-parallel rank of a replica a request goes to"},
};

std::string_view about_field(std::string_view name) {
  const auto found = std::ranges::find(kAboutFields, name, &About::name);
  return found == std::end(kAboutFields) ? std::string_view() : found->about;
}

// `others`, then those of `fields` that a scenario has.
template <typename Config>
std::vector<Key> with_fields(std::vector<Key> others, std::span<const ConfigField<Config>> fields) {
  struct {
    std::string_view name;
    Bounds bounds;
    Key operator()(bool Config::* /*member*/) const {
      return key(Kind::kBoolean, name, about_field(name));
    }
    Key operator()(int Config::* /*member*/) const {
      return whole(name, about_field(name), static_cast<double>(bounds.least),
                   static_cast<double>(std::min<std::int64_t>(bounds.most, kMaxGpus)));
    }
    Key operator()(std::int64_t Config::* /*member*/) const {
      return whole(name, about_field(name), static_cast<double>(bounds.least),
                   static_cast<double>(bounds.most));
    }
    Key operator()(double Config::* /*member*/) const {
      return number(name, about_field(name), static_cast<double>(bounds.least),
                    static_cast<double>(bounds.most), /*is_above=*/true);
    }
    Key operator()(const Choice<Config>& member) const {
      return choice(name, all_names(member.names), about_field(name));
    }
  } make{};
  for (const ConfigField<Config>& field : fields) {
    if (!field.is_scenario_key) continue;
    make.name = field.name;
    make.bounds = field.bounds;
    others.push_back(std::visit(make, field.member));
  }
  return others;
}

// What one rank group has, the prefill and decode side of a disaggregated service too.
std::vector<Key> placement_keys() {
  return with_fields({whole("replicas", "copies behind the router", 1, kMaxGpus, "1")},
                     mesh_fields());
}

const Names kLengths = {"lengths", "length_values"};

Key lengths(std::string_view name, std::string_view about) {
  return needed(or_part(whole(name, about), kLengths));
}

std::vector<Key> drawn(std::vector<Key> others) {
  return joined(std::move(others), {lengths("prompt_tokens", "tokens of a prompt"),
                                    lengths("output_tokens", "tokens of an answer")});
}

Key count_of_requests() { return needed(whole("num_requests", "how many requests come")); }

std::vector<Section> model_sections() {
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
        key(Kind::kBoolean, "shared_inside", "design persistent computes the shared expert too"),
        choice("experts", all_names(kExpertOrderNames), "which rank holds which experts"),
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

Key machine_key(std::string_view about) {
  return or_part(key(Kind::kText, "machine", about), {"scenario_machine"});
}

Key provider_key(std::string_view about) { return key(Kind::kText, "provider", about); }

std::vector<Section> placed_sections() {
  std::vector<Key> side = joined(
      placement_keys(),
      {whole("max_num_seqs", "as in engine, of this side", 1, kBillion),
       whole("max_num_batched_tokens", "as in engine, of this side", 1, kBillion),
       number("gpu_memory_utilization", "as in engine, of this side", 0, 1, /*is_above=*/true),
       choice("kv_cache", texts_until(DType::kInt32), "format of keys and values on this side"),
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
      {"kv_cache",
       {needed(list(part("tiers", {"tier"}, "memories behind the GPUs' KV blocks, nearest first"))),
        choice("load", all_names(kTierLoadNames), "which prefixes come back from tiers"),
        choice("overlap", all_names(kTierOverlapNames), "what loading runs beside")}},
      {"tier",
       {needed(key(Kind::kText, "name", "host, disk, ...")),
        needed(key(Kind::kSize, "capacity", "of a replica, or of all where it is shared")),
        needed(key(Kind::kDataRate, "bandwidth", "rate at which blocks are read")),
        key(Kind::kDataRate, "write_bandwidth", "rate of writes; without it the bandwidth"),
        key(Kind::kTime, "latency", "before the first byte", "0 s"),
        choice("write", all_names(kTierWriteNames), "when blocks are written to it"),
        key(Kind::kBoolean, "shared", "one store of all replicas", "false")}},
      {"engine",
       with_fields<EngineConfig>(
           {key(Kind::kText, "profile", "a file of scenarios/engines, or a path", "vllm"),
            choice("launch_mode", all_names(kStepModes),
                   "of decodes; megakernel: of up to 8, larger ones as graph"),
            list(whole("graph_batch_sizes", "captured batch sizes, ascending")),
            choice("cuda_graphs", all_names(kCudaGraphsNames), "what is replayed as graphs"),
            whole("max_piece_tokens", "largest step that is replayed in pieces", 1, kBillion),
            part("speculative", {"speculative"}, "tokens are drafted and verified")},
           engine_fields())},
      {"speculative",
       {needed(choice("method", all_names(kSpeculativeMethodNames), "what drafts tokens")),
        needed(whole("num_speculative_tokens", "drafts of a step; 0: none", 0,
                     static_cast<double>(kMostSpeculativeTokens))),
        needed(list(
            number("acceptance", "probability of the i-th draft, those before it accepted", 0, 1))),
        key(Kind::kText, "model", "what drafts, or the head of method eagle, as model.config"),
        whole("draft_tensor_parallel_size", "of method draft_model; without it placement.tp", 1,
              kMaxGpus),
        choice("weights", texts_until(DType::kInt32), "format of the draft's weights"),
        choice("activations", texts_until(DType::kInt32), "format that its products run in")}},
  };
}

std::vector<Key> workload_keys() {
  return {
      key(Kind::kText, "trace", "a file of requests: CSV, JSON, Parquet, of many tools"),
      key(Kind::kText, "mooncake", "a file of JSON lines with hash_ids"),
      part("requests", {"requests"}, "requests one by one"),
      part("poisson", {"poisson"}, "arrivals at random"),
      part("gamma", {"gamma"}, "arrivals in bursts (cv above 1) or more even ones"),
      part("closed_loop", {"closed_loop"}, "clients that each wait for their answer"),
      part("sessions", {"sessions"}, "conversations, each turn after the answer before"),
      part("offline", {"offline"}, "all requests queued at 0, no front end"),
      part("static_batch", {"static_batch"}, "one batch that starts together"),
      whole("num_requests", "of a trace, only the first N"),
      number("rate_scale", "of a trace, arrivals this many times as fast", 0, kBillion, true, "1"),
      whole("warmup_requests", "the first N are served and in no figure", 0, kEndless, "0"),
      whole("drain_requests", "the last N are served and in no figure", 0, kEndless, "0"),
      part("columns", {"columns"}, "of a trace, the names of its columns"),
      choice("time_unit", all_names(kTimeUnits), "of a trace's arrivals that are numbers", "s"),
      key(Kind::kBoolean, "sort", "of a trace, arrivals may come in any order", "false"),
      key(Kind::kBoolean, "drop_invalid", "of a trace, requests without tokens are left out",
          "false"),
      number("requests_per_s", "of a trace, arrivals are drawn at this rate", 0, kBillion, true),
      number("chars_per_token", "of a trace with texts, about 4 in English", 0, 100, true),
  };
}

std::vector<Section> workload_sections() {
  const Key rate = needed(number("requests_per_s", "requests a second", 0, kBillion, true));
  return {
      {.name = "workload",
       .keys = workload_keys(),
       .one_of = {"trace", "mooncake", "requests", "poisson", "gamma", "closed_loop", "sessions",
                  "offline", "static_batch"}},
      {"columns",
       {key(Kind::kText, "arrival", "the column of arrivals"),
        needed(key(Kind::kText, "prompt", "the column of prompt tokens")),
        needed(key(Kind::kText, "output", "the column of output tokens")),
        key(Kind::kText, "session", "the column of sessions, of which requests are turns"),
        key(Kind::kText, "wait", "seconds between the answer before and the turn")}},
      {"requests",
       {needed(list(key(Kind::kNumber, "arrival_s", "seconds, ascending"))),
        needed(list(whole("prompt_tokens", "of each request"))),
        needed(list(whole("output_tokens", "of each request")))}},
      {"poisson", drawn({rate, count_of_requests()})},
      {"gamma", drawn({rate, needed(number("cv", "of the times between arrivals", 0, 100, true)),
                       count_of_requests()})},
      {"closed_loop",
       drawn({needed(whole("concurrency", "clients")), count_of_requests(),
              whole("distinct_prompts", "request i repeats the prompt of i modulo this"),
              key(Kind::kBoolean, "cold", "the server has served nothing before", "false")})},
      {.name = "sessions",
       .keys =
           {number("sessions_per_s", "new sessions a second", 0, kBillion, true),
            number("cv", "of the times between their begins", 0, 100, true, "1"),
            whole("concurrency", "users with one session after the other"),
            needed(whole("num_sessions", "how many there are")), lengths("turns", "of a session"),
            lengths("first_prompt", "tokens of a first prompt, after the system prompt"),
            lengths("user_tokens", "tokens that a later turn adds"),
            lengths("output_tokens", "tokens of an answer"),
            or_part(key(Kind::kTime, "think_time", "between an answer and the next turn", "0 s"),
                    {"think_time"}),
            whole("shared_system_prompt", "tokens that all sessions begin with", 0, kEndless, "0"),
            whole("max_context", "a session ends before it has more tokens")},
       .one_of = {"sessions_per_s", "concurrency"}},
      {"think_time",
       {needed(key(Kind::kTime, "mean", "of a gamma distribution")),
        number("cv", "its standard deviation over its mean", 0, 100, false, "1")}},
      {"offline", drawn({count_of_requests()})},
      {"static_batch", drawn({needed(whole("batch", "its sequences"))})},
      {"lengths",
       {number("mean", "of log-normal lengths", 1, kEndless),
        number("cv", "of log-normal lengths: standard deviation over mean", 0, 100),
        number("p50", "of log-normal lengths: the median", 1, kEndless),
        number("p99", "of log-normal lengths", 1, kEndless), whole("min", "the shortest"),
        needed(whole("max", "the longest"))}},
      {"length_values", {needed(list(whole("values", "each as likely")))}},
  };
}

std::vector<Section> step_sections() {
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
        key(Kind::kBoolean, "serve", "the workload is served as well", "true")}},
      {"step",
       {key(Kind::kText, "name", "in the results"),
        list(whole("prefill", "new tokens of each chunk")),
        whole("prefill_context", "tokens before each chunk, beside decodes", 0),
        whole("decodes", "sequences that decode"),
        whole("context", "tokens of each before the step", 0)}},
  };
}

Section scenario_section() {
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

std::vector<Key> device_keys(bool is_whole) {
  const auto always = [&](Key made) { return is_whole ? needed(std::move(made)) : made; };
  return {
      always(key(Kind::kText, "name", "under which its tables are found")),
      key(Kind::kText, "driver_name", "as the driver calls it"),
      always(key(Kind::kText, "vendor", "nvidia, amd, ...")),
      always(key(Kind::kText, "architecture", "hopper, blackwell, ...")),
      always(key(Kind::kSize, "hbm_capacity", "memory")),
      always(key(Kind::kDataRate, "hbm_bandwidth", "rate of its memory")),
      always(part("dense_flops", {"dense_flops"}, "peak of each format, without sparsity")),
      whole("num_sms", "streaming multiprocessors", 1, 100'000),
      part("sharing", {"sharing"}, "what kernels get that run at once"),
      key(Kind::kPower, "tdp", "power limit of the board"),
      part("power", {"power"}, "what parts of the work draw"),
      number("usd_per_hour", "rental price", 0, kEndless),
  };
}

std::vector<Section> machine_sections() {
  const auto rate = [](std::string_view name) { return key(Kind::kComputeRate, name, "its peak"); };
  std::vector<Key> like = device_keys(/*is_whole=*/false);
  like.push_back(needed(key(Kind::kText, "like", "a device whose other values it has")));
  return {
      {.name = kMachineSection,
       .keys = {key(Kind::kText, "name", "as scenarios call it; without it the file's"),
                needed(choice("kind", topology_names(), "how GPUs are joined")),
                needed(or_part(key(Kind::kText, "device", "a name of 'orrery devices', or a path"),
                               {"device", "device_like"})),
                whole("num_gpus", "GPUs in all", 1, kMaxGpus),
                whole("gpus_per_node", "GPUs of a node", 1, kMaxGpus),
                key(Kind::kDataRate, "nvlink_rate", "of a GPU, one way"),
                key(Kind::kTime, "nvlink_latency", "of a message within a node"),
                key(Kind::kDataRate, "pcie_rate", "of a GPU's slot, one way, of a pcie_node"),
                key(Kind::kTime, "pcie_latency", "of a message between its slots"),
                key(Kind::kDataRate, "nic_rate", "of a GPU's network card, one way"),
                key(Kind::kTime, "nic_latency", "of a message between nodes"),
                key(Kind::kTime, "switch_latency", "of each switch passed"),
                number("spine_oversubscription", "leaf ports to hosts over those to spines", 1,
                       kEndless, false, "1"),
                whole("nodes_per_leaf", "nodes on a leaf switch", 1, kMaxGpus),
                key(Kind::kText, "collectives", "a directory of measured collectives"),
                part("cost", {"cost"}, "what its GPUs cost their owner")},
       .is_sourced = true},
      {.name = "device", .keys = device_keys(/*is_whole=*/true), .is_sourced = true},
      {.name = "device_like", .keys = std::move(like), .is_sourced = true},
      {.name = "dense_flops",
       .keys = {rate("fp32"), rate("bf16"), rate("fp16"), rate("fp8"), rate("fp8_block"),
                rate("mxfp4"), rate("nvfp4"), rate("int4"), rate("int8")},
       .is_sourced = true},
      {.name = "sharing",
       .keys = {needed(key(Kind::kDataRate, "hbm_rate", "that all SMs read together")),
                needed(whole("sms_for_hbm", "SMs that reach it")),
                needed(key(Kind::kComputeRate, "bf16_under_power_limit", "of long products"))},
       .is_sourced = true},
      {.name = "power",
       .keys = {needed(key(Kind::kPower, "waiting", "without work")),
                needed(key(Kind::kPower, "hbm", "besides, at the full rate of memory")),
                needed(key(Kind::kPower, "arithmetic", "besides, at the peak of products")),
                needed(number("error", "how far off these may be", 0, 1))},
       .is_sourced = true},
  };
}

std::vector<Section> all_sections() {
  std::vector<Section> all = {scenario_section()};
  for (auto* make : {model_sections, placed_sections, workload_sections, step_sections,
                     machine_sections, profile_sections}) {
    std::ranges::move(make(), std::back_inserter(all));
  }
  return all;
}

// --- whole files

struct Problem {
  Location where;
  std::string text;
  bool is_missing = false;
};

const Key* find_key(const Section& section, std::string_view name) {
  const auto found = std::ranges::find(section.keys, name, &Key::name);
  return found == section.keys.end() ? nullptr : &*found;
}

bool is_missing(const YamlNode& node, const Key& key) {
  const bool is_replaced = !key.unless.empty() && node.find(key.unless) != nullptr;
  return key.is_required && node.find(key.name) == nullptr && !is_replaced;
}

bool is_open(const Section& section) { return std::ranges::any_of(section.keys, &Key::is_pattern); }

// How many keys are not as in the section.
std::ptrdiff_t num_other(const YamlNode& node, const Section& section) {
  const auto unknown = std::ranges::count_if(node.entries, [&](const YamlNode::Entry& entry) {
    return find_key(section, entry.key) == nullptr;
  });
  return unknown +
         std::ranges::count_if(section.keys, [&](const Key& key) { return is_missing(node, key); });
}

void find_problems(const YamlNode& node, const std::string& path, const Section& section,
                   std::vector<Problem>& problems);

// Of a value that may be a section, or a list of them.
void find_problems_of(const YamlNode& value, const std::string& path, const Key& key,
                      std::vector<Problem>& problems) {
  if (key.sections.empty()) return;
  if (key.is_list && value.kind == YamlNode::Kind::kList) {
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const YamlNode& item = value.items[i];
      if (item.kind == YamlNode::Kind::kMap) {
        find_problems(item, path + "[" + std::to_string(i) + "]",
                      find_section(key.sections.front()), problems);
      }
    }
  } else if (!key.is_list && value.kind == YamlNode::Kind::kMap) {
    const std::string_view nearest_form = *std::ranges::min_element(
        key.sections, {},
        [&](std::string_view name) { return num_other(value, find_section(name)); });
    find_problems(value, path, find_section(nearest_form), problems);
  }
}

void find_problems(const YamlNode& node, const std::string& path, const Section& section,
                   std::vector<Problem>& problems) {
  if (is_open(section)) return;
  const std::string prefix = path.empty() ? "" : path + ": ";
  Names known;
  std::string missing;
  int num_missing = 0;
  for (const Key& key : section.keys) {
    known.push_back(key.name);
    if (!is_missing(node, key)) continue;
    missing += (num_missing++ == 0 ? "'" : ", '") + std::string(key.name) + "'";
  }
  for (const YamlNode::Entry& entry : node.entries) {
    if (const Key* key = find_key(section, entry.key); key != nullptr) {
      find_problems_of(entry.value, path.empty() ? entry.key : path + "." + entry.key, *key,
                       problems);
    } else {
      problems.push_back({entry.where, prefix + "unknown key '" + shown(entry.key) +
                                           "' (did you mean '" + nearest(entry.key, known) +
                                           "'?)"});
    }
  }
  if (num_missing > 0) {
    problems.push_back({node.where,
                        prefix + (num_missing == 1 ? "missing key " : "missing keys ") + missing,
                        true});
  }
}

}  // namespace

std::span<const Section> sections() {
  static const std::vector<Section> all = all_sections();
  return all;
}

const Section& find_section(std::string_view name) {
  const auto all = sections();
  const auto found = std::ranges::find(all, name, &Section::name);
  if (found == all.end()) {
    throw std::invalid_argument("no section '" + std::string(name) + "' of scenarios or machines");
  }
  return *found;
}

std::vector<std::string_view> key_names(std::string_view of) {
  Names found;
  for (const Key& key : find_section(of).keys) found.push_back(key.name);
  return found;
}

void check_keys(const YamlNode& root, std::string_view of) {
  if (root.kind != YamlNode::Kind::kMap) return;
  std::vector<Problem> problems;
  find_problems(root, "", find_section(of), problems);
  if (problems.size() < 2) return;
  // Unknown ones first, as what is missing may be among them under another name.
  std::ranges::stable_sort(problems, {}, [](const Problem& problem) {
    return std::tuple(problem.is_missing, problem.where.line, problem.where.column);
  });
  std::string text = std::to_string(problems.size()) + " keys to mend";
  for (const Problem& problem : problems) {
    text += &problem == &problems.front() ? ": " : "; ";
    if (problem.where.line > 0) text += "line " + std::to_string(problem.where.line) + ", ";
    text += problem.text;
  }
  fail_at(problems.front().where, text);
}

}  // namespace orrery
