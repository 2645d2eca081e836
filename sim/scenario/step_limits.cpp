#include "sim/scenario/step_limits.h"

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "sim/model/step_shape.h"

namespace orrery {
namespace {

void require(const std::string& name, std::int64_t found, std::int64_t most,
             const std::string& what, const std::string& limit) {
  if (found > most) {
    throw std::invalid_argument(name + " has " + std::to_string(found) + " " + what + "; " + limit +
                                " allows " + std::to_string(most));
  }
}

}  // namespace

void check_fits(const std::string& name, const Batch& batch, const Scenario& scenario,
                const MemoryBudget& memory) {
  (void)step_shape(batch);  // throws where the sums below would not be sound
  const EngineConfig& engine = scenario.engine;
  const std::int64_t most =
      engine.max_model_len > 0 ? engine.max_model_len : std::numeric_limits<std::int64_t>::max();
  require(name, longest_context(batch), most, "tokens in one sequence", "engine.max_model_len");
  const std::int64_t of_states = num_sequences(batch) * memory.state_blocks;
  const std::int64_t size = tokens_of_block(engine, scenario.mesh);
  require(name, kv_blocks(batch, size) + of_states, memory.num_kv_blocks, "KV blocks", "memory");
}

void check_formed(const std::string& name, const Batch& batch, const Scenario& scenario,
                  const MemoryBudget& memory) {
  const EngineConfig& engine = scenario.engine;
  const std::int64_t dp = scenario.mesh.dp;
  require(name, num_tokens(batch), engine.max_num_batched_tokens * dp, "tokens",
          "engine.max_num_batched_tokens");
  require(name, num_sequences(batch), engine.max_num_seqs * dp, "sequences", "engine.max_num_seqs");
  check_fits(name, batch, scenario, memory);
}

}  // namespace orrery
