#include "sim/serve/capacity.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "sim/parallel/rank_rows.h"
#include "sim/units/parse.h"

namespace orrery {
namespace {

Bytes fixed(const MemoryBudget& budget) {
  return budget.weights + budget.activations + budget.graphs + budget.communication +
         budget.context + budget.workspace;
}

Bytes left_for_kv(const MemoryBudget& budget) { return budget.usable - fixed(budget); }

// What the share of the engine's memory leaves usable, the KV cache included.
Bytes usable(const EngineConfig& engine, const MemoryBudget& budget) {
  const double share = engine.gpu_memory_utilization;
  switch (engine.memory_fraction) {
    case MemoryFraction::kTotal:
      break;
    case MemoryFraction::kFree:
      return fixed(budget) + (budget.hbm - fixed(budget)) * share;
    case MemoryFraction::kWeightsAndCache: {
      const Bytes others = fixed(budget) - budget.weights;
      return std::min(budget.hbm, budget.hbm * share + others);
    }
  }
  return budget.hbm * share;
}

// Of the first rank, which has all that a rank has.
void add_draft(const DraftRequest& draft, const Batch& largest, MemoryBudget& budget) {
  const Plan plan = step_plan(draft.model, largest, draft.lowering, draft.mesh);
  const MemoryUse use = memory_of(plan, 0);
  budget.draft_weights = use.weights;
  for (const Tensor& tensor : plan.tensors()) {
    const bool is_shared = tensor.name == "embed_tokens" || tensor.name == "lm_head.weight";
    if (draft.shares_embedding && is_shared && plan.contains(tensor.ranks, 0)) {
      budget.draft_weights -= bytes_of(tensor);
    }
  }
  budget.weights += budget.draft_weights;
  budget.activations = std::max(budget.activations, use.activations);  // one after the other
}

// Throws std::invalid_argument where weights of an FFN rank, and tokens of all its micro-batches,
// do not fit. `attention`: the budget of an attention rank, whose other memory it needs as well.
void check_ffn_memory(const CapacityRequest& request, const MemoryBudget& attention,
                      const MemoryUse& ffn, const Device& device) {
  MemoryBudget budget = attention;
  budget.hbm = device.hbm_capacity;
  budget.weights = ffn.weights;
  budget.activations = ffn.activations;
  const Bytes room = usable(request.engine, budget);
  const Bytes needed = fixed(budget);
  if (needed <= room) return;
  const Mesh& mesh = request.mesh;
  // Weights and rows of an instance are over its ranks and, at best, over all instances.
  const int more = static_cast<int>(std::ceil(mesh.ffn_instances * (needed / room)));
  throw std::invalid_argument(
      "FFNs of " + request.model.name + " do not fit on " + device.name + ": a GPU of " +
      std::to_string(mesh.ffn_instances) + " instances of ffn_tp " + std::to_string(mesh.ffn_tp) +
      " needs " + memory_text(budget.weights) + " of weights and " +
      memory_text(budget.activations) + " for " + std::to_string(mesh.num_micro_batches) +
      " micro-batches, in all " + memory_text(needed - room) + " more than the " +
      memory_text(room) + " that gpu_memory_utilization leaves; expected about " +
      std::to_string(more) + " ffn_instances, or a smaller max_num_batched_tokens");
}

// Fills everything but the KV cache.
MemoryBudget fixed_part(const CapacityRequest& request, const Device& device) {
  const EngineConfig& engine = request.engine;
  // The largest step: on each data-parallel rank as many decodes as run, and a prompt chunk that
  // fills its token budget.
  const std::int64_t query = 1 + engine.speculation.num_tokens;
  const std::int64_t decodes =
      std::min(engine.max_num_seqs, (engine.max_num_batched_tokens - 1) / query);
  const std::int64_t dp = request.mesh.dp;
  const std::int64_t of_decodes = decodes * query;
  Batch largest{
      .num_decodes = decodes * dp, .decode_context = of_decodes * dp, .decode_query = query};
  if (engine.max_num_batched_tokens > of_decodes) {
    largest.prefill.assign(static_cast<std::size_t>(dp),
                           {.query = engine.max_num_batched_tokens - of_decodes, .context = 0});
  }
  const Plan plan = step_plan(request.model, largest, request.lowering, request.mesh);
  MemoryBudget budget{
      .hbm = device.hbm_capacity,
      .graphs = request.graphs,
      .communication = num_ranks(request.mesh) > 1 ? request.communication : Bytes(0),
      .context = request.context,
      .workspace = request.workspace};
  // Ranks of a stage are alike; stages differ (embedding first, LM head last). Those of FFNs alone
  // have no KV cache.
  const int num_attention = plan.num_ranks() - num_ffn_ranks(request.mesh);
  const int ranks_per_stage = num_attention / request.mesh.pp;
  for (int rank = 0; rank < num_attention; rank += ranks_per_stage) {
    const MemoryUse use = memory_of(plan, rank);
    budget.weights = std::max(budget.weights, use.weights);
    budget.activations = std::max(budget.activations, use.activations);
  }
  if (request.draft) {
    largest.samples_last = true;
    add_draft(*request.draft, largest, budget);
  }
  budget.usable = usable(engine, budget);
  if (request.mesh.ffn_instances > 0) {
    const Device& ffn_device = request.ffn_device != nullptr ? *request.ffn_device : device;
    check_ffn_memory(request, budget, memory_of(plan, num_attention), ffn_device);
  }
  return budget;
}

// Windows of so many tokens count as full from a sequence's first token on.
constexpr std::int64_t kShortWindow = 1024;

// Beside layers that attend to all tokens, those of a short window keep a sequence's newest ones
// alone, as states are kept (vLLM: hybrid KV cache manager, kv_cache_coordinator.py; TensorRT-LLM:
// max_attention_window; SGLang: its pool for sliding windows). Longer windows count as none.
ModelConfig paged(const CapacityRequest& request) {
  ModelConfig model = request.model;
  const auto keeps_all = [](const LayerConfig& layer) {
    return layer.sliding_window == 0 && layer.caches_tokens();
  };
  if (request.keeps_window_kv || std::ranges::none_of(model.layers, keeps_all)) return model;
  // Ranks share heads where there are fewer of them than ranks.
  const double heads =
      std::max<double>(static_cast<double>(model.num_key_value_heads), request.mesh.tp);
  const double token = 2 * heads * static_cast<double>(model.head_dim) *
                       bytes_per_element(request.lowering.precision.kv_cache);
  for (LayerConfig& layer : model.layers) {
    if (layer.sliding_window == 0 || layer.sliding_window > kShortWindow) continue;
    layer.state_bytes = std::llround(token * static_cast<double>(layer.sliding_window));
  }
  return model;
}

// One block on the GPU that holds most, of the layers that keep all tokens.
Bytes kv_block_bytes(const CapacityRequest& request) {
  return kv_bytes_per_rank(paged(request), request.mesh, request.lowering.precision.kv_cache, 1) *
         static_cast<double>(request.engine.block_size);
}

// Of what drafts, which has keys and values of all tokens, too.
Bytes draft_block_bytes(const CapacityRequest& request) {
  if (!request.draft) return Bytes(0);
  const DraftRequest& draft = *request.draft;
  return kv_bytes_per_rank(draft.model, draft.mesh, draft.lowering.precision.kv_cache, 1) *
         static_cast<double>(request.engine.block_size);
}

std::int64_t state_blocks(const CapacityRequest& request, Bytes block) {
  return static_cast<std::int64_t>(
      std::ceil(state_bytes_per_rank(paged(request), request.mesh) / block));
}

// "; tp 4 would fit" or why nothing does.
std::string smallest_fit(CapacityRequest request, const Device& device) {
  constexpr int kMostRanks = 1024;
  for (int tp = request.mesh.tp * 2; tp <= kMostRanks; tp *= 2) {
    request.mesh.tp = tp;
    request.mesh.ep = request.mesh.ep > 1 ? request.mesh.dp * tp : 1;
    if (request.draft && request.draft->shares_embedding) request.draft->mesh = request.mesh;
    try {
      check_mesh(request.model, request.mesh);
      const MemoryBudget budget = fixed_part(request, device);
      const Bytes block = kv_block_bytes(request) + draft_block_bytes(request);
      if (left_for_kv(budget) >= block * static_cast<double>(1 + state_blocks(request, block))) {
        return "; tp " + std::to_string(tp) + " (" + std::to_string(num_ranks(request.mesh)) +
               " GPUs) would fit";
      }
    } catch (const std::invalid_argument&) {
      break;  // no legal mesh of that size
    }
  }
  return "; no larger tp fits: use pp, narrower weights or a larger device";
}

}  // namespace

MemoryBudget memory_budget(const CapacityRequest& request, const Device& device) {
  const double utilization = request.engine.gpu_memory_utilization;
  if (!(utilization > 0 && utilization <= 1)) {
    throw std::invalid_argument("gpu_memory_utilization is " + std::to_string(utilization) +
                                ", expected above 0 and at most 1");
  }
  MemoryBudget budget = fixed_part(request, device);
  budget.draft_kv_block = draft_block_bytes(request);
  budget.kv_block = kv_block_bytes(request) + budget.draft_kv_block;
  budget.state_blocks = state_blocks(request, budget.kv_block);
  const Bytes states = budget.kv_block * static_cast<double>(budget.state_blocks);
  const Bytes left = left_for_kv(budget);
  if (left < states + budget.kv_block) {
    throw std::invalid_argument(
        request.model.name + " does not fit on " + device.name + ": one GPU needs " +
        memory_text(budget.weights) + " of weights, " + memory_text(budget.activations) +
        " of activations, " + memory_text(budget.graphs) + " of graphs, " +
        memory_text(budget.communication) + " of communication buffers, " +
        memory_text(budget.context + budget.workspace) + " of context and workspace" +
        (states > Bytes(0) ? ", " + memory_text(states) + " for the states of one sequence" : "") +
        " and " + memory_text(budget.kv_block) + " for one KV block, " +
        memory_text(states + budget.kv_block - left) + " more than the " +
        memory_text(budget.usable) + " that gpu_memory_utilization leaves" +
        smallest_fit(request, device));
  }
  if (!(budget.kv_block > Bytes(0))) {
    throw std::invalid_argument("no layer of " + request.model.name + ", the first " +
                                std::to_string(request.model.layers.size()) +
                                " of it, keeps keys and values of tokens, and a service counts "
                                "its memory in KV blocks; expected model.layers that reach a layer "
                                "of attention");
  }
  const auto blocks = static_cast<std::int64_t>(left / budget.kv_block);
  budget.kv_cache = budget.kv_block * static_cast<double>(blocks);
  budget.num_kv_blocks = blocks * request.mesh.dp;
  return budget;
}

}  // namespace orrery
