#include "sim/machine/machine.h"
#include "sim/plan/launch_mode.h"
#include "sim/scenario/engine_profile.h"
#include "sim/scenario/field_keys.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"
#include "sim/scenario/speculative_spec.h"
#include "sim/serve/kv_tier_config.h"

namespace orrery {

std::vector<Section> engine_sections() {
  using namespace key_makers;
  return {
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

}  // namespace orrery
