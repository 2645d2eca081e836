#include "sim/scenario/step_limits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "sim/model/step_shape.h"

namespace orrery {
namespace {

std::int64_t blocks(std::int64_t tokens, std::int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

void require(const std::string& name, std::int64_t found, std::int64_t most,
             const std::string& what, const std::string& limit) {
  if (found > most) {
    throw std::invalid_argument(name + " has " + std::to_string(found) + " " + what + "; " + limit +
                                " allows " + std::to_string(most));
  }
}

}  // namespace

std::int64_t mean_context(const Batch& batch) {
  return batch.num_decodes == 0
             ? 0
             : std::max<std::int64_t>(1, std::llround(static_cast<double>(batch.decode_context) /
                                                      static_cast<double>(batch.num_decodes)));
}

void check_fits(const std::string& name, const Batch& batch, const Scenario& scenario,
                std::int64_t num_kv_blocks) {
  (void)step_shape(batch);  // throws where the sums below would not be sound
  const EngineConfig& engine = scenario.engine;
  const std::int64_t decode_context = mean_context(batch);
  std::int64_t longest = decode_context;
  std::int64_t needed = batch.num_decodes * blocks(decode_context, engine.block_size);
  for (const PrefillChunk& chunk : batch.prefill) {
    longest = std::max(longest, chunk.query + chunk.context);
    needed += blocks(chunk.query + chunk.context, engine.block_size);
  }
  const std::int64_t most =
      engine.max_model_len > 0 ? engine.max_model_len : std::numeric_limits<std::int64_t>::max();
  require(name, longest, most, "tokens in one sequence", "engine.max_model_len");
  require(name, needed, num_kv_blocks, "KV blocks", "memory");
}

void check_formed(const std::string& name, const Batch& batch, const Scenario& scenario,
                  std::int64_t num_kv_blocks) {
  const EngineConfig& engine = scenario.engine;
  const std::int64_t dp = scenario.mesh.dp;
  const auto sequences = static_cast<std::int64_t>(batch.prefill.size()) + batch.num_decodes;
  require(name, num_tokens(batch), engine.max_num_batched_tokens * dp, "tokens",
          "engine.max_num_batched_tokens");
  require(name, sequences, engine.max_num_seqs * dp, "sequences", "engine.max_num_seqs");
  check_fits(name, batch, scenario, num_kv_blocks);
}

}  // namespace orrery
