#pragma once

// What one GPU's memory holds, and how many KV blocks remain: as vLLM plans it, HBM times
// gpu_memory_utilization minus weights, peak activations, captured graphs and communication
// buffers.

#include <cstdint>
#include <optional>

#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

// All of the rank that holds most.
struct MemoryBudget {
  Bytes hbm;
  Bytes usable;  // what gpu_memory_utilization leaves, by EngineConfig::memory_fraction
  Bytes weights;
  Bytes activations;  // peak of a step of max_num_batched_tokens
  Bytes graphs;
  Bytes communication;
  Bytes context;    // of the process on the device
  Bytes workspace;  // scratch memory of kernels
  Bytes kv_cache;   // what remains, in whole blocks
  Bytes kv_block;   // bytes of one block on one GPU
  // What drafts tokens has of the weights and of a block; 0: nothing does.
  Bytes draft_weights;
  Bytes draft_kv_block;
  // What a sequence takes whatever its length, in blocks: vLLM keeps states in pages of the KV
  // cache (vllm/v1/core/kv_cache_utils.py, pages of one size).
  std::int64_t state_blocks = 0;
  std::int64_t num_kv_blocks = 0;  // of one instance: over its data-parallel ranks
};

// Tokens of a sequence that a KV block holds: one block of each context-parallel rank together,
// since tokens are dealt out to them in turn (as vLLM counts with decode_context_parallel_size).
inline std::int64_t tokens_of_block(const EngineConfig& engine, const Mesh& mesh) {
  return engine.block_size * mesh.cp;
}

// What drafts tokens beside the model.
struct DraftRequest {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  bool shares_embedding = false;  // and LM head, with the model
};

struct CapacityRequest {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  EngineConfig engine;
  Bytes graphs;
  Bytes communication;
  Bytes context;
  Bytes workspace;
  std::optional<DraftRequest> draft;
  bool keeps_window_kv = false;        // of all tokens; else of the newest, where windows are short
  const Device* ffn_device = nullptr;  // of FFNs apart; null: that of attention
};

// Throws std::invalid_argument when weights and buffers leave no room for one block: by how much,
// and the smallest tensor parallelism that would fit on this device.
MemoryBudget memory_budget(const CapacityRequest& request, const Device& device);

}  // namespace orrery
