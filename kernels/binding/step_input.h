#pragma once

// What one step computes, sequence by sequence: what a Plan's batch leaves open. No CUDA.

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/plan/batch.h"

namespace orrery {

// New tokens of one sequence and where its cache lies.
struct SequenceTokens {
  std::vector<std::int32_t> tokens;  // at least one
  std::int64_t context = 0;          // tokens cached before them
  std::vector<std::int32_t> blocks;  // of the paged cache, covering context + tokens
  bool produces_token = true;        // false: a chunk that does not end its prompt
  // The data-parallel rank that computes it, which has its cache, or of a step in halves the part
  // (sim/plan/halves.h); -1, then of all sequences of the step: dealt out in order (split_step).
  int dp_rank = -1;
};

// Rows of the step in order: the tokens of each prefill chunk, then one token for each decode.
// Where a plan has more rows (captured graphs are padded), the rest hold no sequence: no context,
// nothing stored, results ignored. Sampled rows: chunks that produce a token, then decodes.
struct StepInput {
  std::vector<SequenceTokens> prefill;
  std::vector<SequenceTokens> decodes;  // one token each
};

// Rows of a prompt that attention takes together: the first is at `position` of its sequence, whose
// keys begin at `key_row` among those of all sequences. Each sees the keys up to its own position,
// but no more than `keys`, where that is said.
struct PrefillPiece {
  std::int64_t query_row = 0;
  std::int64_t query = 0;
  std::int64_t position = 0;
  std::int64_t key_row = 0;
  std::int64_t sequence = 0;
  std::optional<std::int64_t> keys;
  bool operator==(const PrefillPiece&) const = default;
};

// The same in numbers. `num_decodes`: where that is more than there are, the others pad the step as
// sequences of one token.
PrefillChunk chunk_of(const SequenceTokens& sequence);
Batch batch_of(const StepInput& input, std::int64_t num_decodes = 0);

// Rows of a step as the plan has them, of one micro-batch on one rank.
struct StepRows {
  std::int64_t tokens = 0;   // in all: prefill, decodes, padding
  std::int64_t prefill = 0;  // rows of attention_prefill or mla_prefill, which come first
  std::int64_t decodes = 0;  // sequences of attention_decode or mla_decode
  std::int64_t seqs = 0;     // rows of logits
  bool operator==(const StepRows&) const = default;
};

enum class RoutingScore : std::uint8_t { kSoftmax, kSigmoid };

// How a mixture of experts scores, chooses and weighs.
struct Routing {
  RoutingScore score = RoutingScore::kSoftmax;
  bool normalises = false;       // weights of a token's experts are divided by their sum
  double scale = 1;              // and multiplied by this
  std::int64_t groups = 1;       // of experts
  std::int64_t topk_groups = 1;  // of these, those from which experts are chosen
  // Added to the router's logits, one for each expert, in place of a bias that the model has: what
  // makes random weights choose by a load (kernels/execute/router_bias.h). Empty: none.
  std::vector<float> bias;
  // Which expert each slot of the ranks holds, in that order, where some have copies or lie in
  // another order. Of an expert's slots a rank's tokens take one after the other. Empty: experts in
  // order.
  std::vector<std::int32_t> expert_of_slot;
};

// Numbers of a model that its plan does not hold: they change results, not times.
struct ModelNumbers {
  double norm_epsilon = 1e-5;
  double rope_theta = 500000;
  std::int64_t head_dim = 128;        // of attention heads; of MLA what turns of a head
  std::int64_t max_positions = 8192;  // rows of the rope tables
  Routing routing;
};

// How the ranks of a plan are numbered, slowest first: pp, dp, tp, cp (sim/parallel/parallel.h).
struct RankGrid {
  int tp = 1;
  int dp = 1;
  int pp = 1;
  int cp = 1;
  int ffn_instances = 0;  // each of ffn_tp ranks behind the others, which compute FFNs alone
  int ffn_tp = 1;
  [[nodiscard]] int size() const { return tp * dp * pp * cp + ffn_instances * ffn_tp; }
  // Whether it computes FFNs alone: such ranks have no sequences, and no place among the others.
  [[nodiscard]] bool is_ffn(int rank) const { return rank >= tp * dp * pp * cp; }
  [[nodiscard]] int cp_rank(int rank) const { return rank % cp; }
  [[nodiscard]] int tp_rank(int rank) const { return rank / cp % tp; }
  [[nodiscard]] int dp_rank(int rank) const { return rank / (tp * cp) % dp; }
  [[nodiscard]] int stage(int rank) const { return rank / (tp * dp * cp); }
  // Of the ranks that compute the same sequences.
  [[nodiscard]] bool is_first(int rank) const { return tp_rank(rank) == 0 && cp_rank(rank) == 0; }
};

}  // namespace orrery
