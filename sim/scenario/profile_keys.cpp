#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/model/model.h"
#include "sim/plan/launch_mode.h"
#include "sim/scenario/engine_profile.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"
#include "sim/serve/serve.h"

namespace orrery {
namespace {

using namespace key_makers;

Key time(std::string_view name, std::string_view about) { return key(Kind::kTime, name, about); }

// Over a time that is known, between a tenth and ten times it.
Key factor(std::string_view name, std::string_view about, double least = 0.1) {
  return number(name, about, least, 10);
}

// `none` takes away what a profile that this one extends has.
Key or_none(Key made) {
  made.kinds.push_back(Kind::kChoice);
  made.choices = {"none"};
  return made;
}

Section part_of(std::string_view name, std::vector<Key> keys) {
  return {.name = name, .keys = std::move(keys), .is_sourced = true, .is_extended = true};
}

Section host_section() {
  return part_of(
      "host",
      {needed(time("eager_launch", "to issue one kernel")),
       needed(time("graph_node", "between nodes of a replayed graph, beyond op times")),
       needed(time("d2h_sync", "copy of a flag to the host and its wake-up")),
       time("graph_hop", "from an op to one on another stream that waits for it, in graphs"),
       time("eager_hop", "likewise, launched one by one"),
       time("graph_arrivals", "standard deviation of when ranks come to a collective, in graphs"),
       time("eager_arrivals", "likewise, launched one by one"),
       time("eager_exchange", "to issue a collective other than an all-reduce"),
       number("gemm_launch", "times eager_launch that a GEMM or attention takes to issue", 1, 10),
       number("latent_launch", "likewise, of latent attention and products by head", 1, 10),
       number("launch_spread", "relative standard deviation of how fast ranks issue", 0, 1),
       needed(time("scheduler_base", "of a step besides launches")),
       needed(time("scheduler_per_sequence", "likewise, for each decode and chunk of a prompt")),
       time("serve_base", "of a step of a service besides"),
       time("serve_per_sequence", "likewise, for each decode and chunk of a prompt"),
       time("prefill_base", "of a step with prompts besides"),
       time("new_rows", "of a step whose numbers of rows come for the first time"),
       time("new_rows_per_op", "likewise, for each op of a rank"),
       number("new_rows_streams", "times as long where ops are on several streams", 1, 10),
       time("new_attention", "of a step whose attention has a shape that comes for the first time"),
       time("piece_launch", "per layer of a step in pieces: what is launched between them")});
}

Section kernel_time_section() {
  return part_of("kernel_time",
                 {needed(factor("eager", "in steps launched eagerly, over the time alone")),
                  needed(factor("eager_moe", "likewise, of kernels of routed experts")),
                  needed(factor("graph", "in replayed graphs, over the time alone")),
                  part("kernels", {"kernel_factors"}, "of single kernels, in both"),
                  time("uneven_attention", "more of a layer where contexts differ"),
                  time("uneven_attention_of_few", "likewise, of few sequences")});
}

Section kernel_factors() {
  std::vector<Key> keys;
  for (const KernelSpec& spec : kernel_specs()) keys.push_back(factor(spec.name, spec.summary));
  return part_of("kernel_factors", std::move(keys));
}

Section power_limit_section() {
  return part_of(
      "power_limit",
      {needed(factor("product", "of bf16 GEMMs at the power limit, over the full clock", 1)),
       needed(factor("narrow_product", "likewise, of narrower formats", 1)),
       needed(factor("attention", "likewise, over prompts", 1)),
       factor("decodes", "likewise, of decodes that follow prompts", 1),
       needed(number("share", "of the time, arithmetic at the full clock without end", 0.01, 0.99)),
       needed(time("boost", "arithmetic beyond it until the clock has fallen")),
       needed(time("full_rows", "rows of tables up to this are at the full clock")),
       needed(time("limited_rows", "from this on at the limit"))});
}

Section front_end_section() {
  return part_of("front_end",
                 {needed(time("per_request", "of the one server that each request passes")),
                  needed(time("per_prompt_token", "likewise")),
                  needed(time("per_output_token", "of the one server that sends tokens")),
                  needed(time("stream_latency", "from a step's end until the client has tokens")),
                  time("cold_start", "before the first request of a cold server")});
}

Section megakernel_section() {
  return part_of("megakernel", {needed(time("hbm_latency", "of a page of weights")),
                                needed(time("page", "a page of bf16 weights computed")),
                                needed(time("fp8_page", "a page of fp8 weights computed")),
                                needed(time("key_page", "a page of keys computed")),
                                needed(time("read", "of an instruction's operands")),
                                needed(time("merge", "of four parts of the keys")),
                                needed(time("store", "of an instruction's results")),
                                needed(time("hop", "until another SM sees them")),
                                needed(time("instruction", "of each besides"))});
}

std::vector<Key> scheduler_keys() {
  return {
      needed(
          key(Kind::kBoolean, "async_scheduling", "a step is prepared while the one before runs")),
      needed(choice("scheduler_policy",
                    {kSchedulerPolicyNames[0], kWholePrompts, kSchedulerPolicyNames[1]},
                    "how prompts and decodes share steps")),
      needed(choice("kv_admission", all_names(kKvAdmissionNames),
                    "which blocks must be free to admit a request")),
      number("new_token_ratio", "of kv_admission: estimated", 0, 1),
      choice("dp_router", all_names(kDpRouterNames),
             "which data-parallel rank of a replica a request goes to"),
      needed(whole("max_num_seqs", "sequences of a step, of a data-parallel rank", 1, kBillion)),
      needed(whole("max_num_batched_tokens", "tokens of a step, of a data-parallel rank", 1,
                   kBillion)),
      or_none(
          whole("offline_max_num_batched_tokens", "likewise, of an offline workload", 1, kBillion)),
      key(Kind::kBoolean, "enable_prefix_caching", "KV blocks of prefixes are kept", "false"),
      key(Kind::kBoolean, "keeps_window_kv",
          "layers of short windows keep keys and values of all tokens", "false"),
      or_part(choice("small_gpu", {"none"}, "defaults on smaller GPUs"), {"small_gpu"}),
      choice("memory_fraction", all_names(kMemoryFractionNames),
             "what gpu_memory_utilization is a share of"),
  };
}

std::vector<Key> execution_keys() {
  return {
      needed(choice("launch_mode", all_names(kStepModes), "of decodes")),
      needed(list(whole("graph_batch_sizes", "captured batch sizes, ascending"))),
      choice("cuda_graphs", all_names(kCudaGraphsNames), "what is replayed as graphs", "decodes"),
      whole("max_piece_tokens", "largest step that is replayed in pieces", 1, kBillion, "512"),
      part("megakernel", {"megakernel"}, "its times, where the engine has one"),
      needed(key(Kind::kSize, "graph_memory", "of captured graphs, on a GPU")),
      needed(key(Kind::kSize, "communication_buffers", "on a GPU of several")),
      key(Kind::kSize, "context_memory", "of the process's CUDA context"),
      key(Kind::kSize, "library_memory", "code of libraries"),
      key(Kind::kSize, "workspace_memory", "scratch memory of kernels"),
      needed(choice("mla_form", all_names(kMlaFormNames), "how latent attention is computed")),
      part("attention", {"profile_attention"}, "how softmax attention takes a step's sequences"),
      part("moe", {"moe"}, "how routed experts are computed"),
      part("moe_tables", {"moe_tables"}, "by format of routed experts, whose rows answer"),
      needed(choice("all_reduce", all_names(kAllReduce), "which all-reduce tables")),
      needed(choice("custom_all_reduce", all_names(kCustomAllReduce), "the engine's own of them")),
  };
}

Section moe_tables_section() {
  std::vector<Key> keys;
  keys.reserve(kMoeTableFormats.size());
  for (const DType dtype : kMoeTableFormats) {
    keys.push_back(key(Kind::kText, to_text(dtype), "a provider"));
  }
  return part_of("moe_tables", std::move(keys));
}

}  // namespace

std::vector<Section> profile_sections() {
  std::vector<Key> keys = {
      needed(key(Kind::kText, "name", "of the profile")),
      key(Kind::kText, "extends", "a profile beside it, whose values it has where it has none"),
      needed(part("host", {"host"}, "times of the host")),
      needed(part("kernel_time", {"kernel_time"}, "times in steps over those of the tables")),
      part("power_limit", {"power_limit"}, "times at the board's power limit"),
      needed(part("front_end", {"front_end"}, "the server that requests pass")),
  };
  keys = joined(joined(std::move(keys), scheduler_keys()), execution_keys());
  return {
      part_of(kEngineProfileSection, std::move(keys)),
      host_section(),
      kernel_time_section(),
      kernel_factors(),
      power_limit_section(),
      front_end_section(),
      megakernel_section(),
      moe_tables_section(),
      part_of("profile_attention",
              {choice("form", all_names(kAttentionFormNames), "prompts and decodes in one call?"),
               whole("queries", "a new shape: new tokens, up to a multiple of this", 1, 1e6),
               whole("keys", "likewise, tokens of all sequences", 1, 1e6)}),
      {.name = "small_gpu",
       .keys = {needed(key(Kind::kSize, "below", "GPUs with less memory")),
                needed(key(Kind::kText, "architecture", "and those of an architecture")),
                needed(whole("max_num_seqs", "as above, on these", 1, kBillion)),
                needed(whole("max_num_batched_tokens", "as above, on these", 1, kBillion)),
                whole("offline_max_num_batched_tokens", "as above, on these", 1, kBillion),
                needed(key(Kind::kText, "source", "where this is from"))},
       .is_extended = true},
  };
}

}  // namespace orrery
