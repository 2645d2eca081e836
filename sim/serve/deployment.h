#pragma once

// What the GPU side must know to run a simulated instance: the model's config.json, precisions,
// mesh, scheduler and memory, as one plain text file that needs no third-party code to read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/serve/serve.h"

namespace orrery {

struct Deployment {
  std::string name;     // of the model, for messages
  ConfigFields config;  // flattened config.json: model_config(name, config) is the model
  LoweringOptions lowering;
  Mesh mesh;
  EngineConfig engine;
  // Decode batches that are captured, ascending; empty: every step is launched eagerly.
  std::vector<std::int64_t> graph_batch_sizes;
  // Of these, ascending, those that run as one kernel in place of a graph.
  std::vector<std::int64_t> megakernel_batch_sizes;
  std::int64_t num_kv_blocks = 0;  // per rank, of engine.block_size tokens
  std::uint64_t seed = 1;          // of the weights
  bool operator==(const Deployment&) const = default;
};

// One line per field: "<section> <key> <value>", config fields with the kind of their value:
//
//   name llama-3.1-8b
//   config hidden_size int 4096            kinds: null bool int float text ints texts
//   config architectures texts "LlamaForCausalLM"
//   precision weights bf16                 expert_weights "-": as weights
//   lowering mla_form auto
//   lowering attention_form split
//   mesh tp 2
//   engine max_num_seqs 256
//   graph_batch_sizes 1,2,4                "-": none
//   megakernel_batch_sizes 1,2             "-": none
//   num_kv_blocks 4096
//   seed 1
//
// Text is quoted where it has other characters than letters, digits and "_.-/+", with backslash
// escapes. Empty lines and lines that start with "#" are ignored.
std::string to_text(const Deployment& deployment);
// parse_deployment(to_text(d)) == d. Every field but config must be there exactly once. Throws
// std::invalid_argument with the line number, and the nearest field where one is unknown.
Deployment parse_deployment(std::string_view text);

}  // namespace orrery
