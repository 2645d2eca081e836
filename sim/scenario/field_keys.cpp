#include "sim/scenario/field_keys.h"

#include <iterator>

namespace orrery::key_makers {
namespace {

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
    {"max_prefill_tokens", "a step with prompts takes no further one that exceeds it"},
    {"stream_interval", "tokens sent in a message after the first"},
    {"dp_router", "which data-parallel rank of a replica a request goes to"},
};

}  // namespace

std::string_view about_field(std::string_view name) {
  const auto found = std::ranges::find(kAboutFields, name, &About::name);
  return found == std::end(kAboutFields) ? std::string_view() : found->about;
}

}  // namespace orrery::key_makers
