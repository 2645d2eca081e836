#pragma once

// Which rows of a step a context-parallel rank computes and stores. Prompts are dealt out in
// zig-zag, so that causal attention is as much work on each rank:
//
//   cp = 2:   | 0 | 1 | 1 | 0 |     rank 0 has the queries that see least and those that see most
//
// Decodes are on all ranks, which attend to their parts of the context, or dealt out, one block of
// them to each rank (CpDecodes).

#include <cstdint>

#include "sim/parallel/parallel.h"
#include "sim/parallel/rewrite.h"
#include "sim/plan/plan.h"

namespace orrery {

// Attention over the KV cache, or of prompts over expanded keys.
bool is_attention(const Op& op);
// Of new tokens after cached ones, rather than of one for each sequence.
bool is_prefill_attention(const Op& op);

// `query` tokens of a prompt over the ranks of `place`.
SplitPart zigzag_part(std::int64_t query, const Place& place);

class ContextRows {
 public:
  // Of a plan before its rows are dealt out. Throws std::invalid_argument for attention that takes
  // no part of a context, naming the op.
  ContextRows(const Plan& plan, const Mesh& mesh);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }  // of the step
  [[nodiscard]] bool has_prefill() const { return prefill_ > 0; }
  [[nodiscard]] bool deals_decodes() const { return deals_decodes_ && tokens_ > prefill_; }
  // Decodes that are dealt out: of a rank, and of all with the padding of the last.
  [[nodiscard]] std::int64_t own_decodes() const { return ceil_div(tokens_ - prefill_, cp_); }
  [[nodiscard]] std::int64_t gathered_decodes() const { return own_decodes() * cp_; }
  // Of `seqs` sequences, the last of which are the decodes: those that a rank samples.
  [[nodiscard]] std::int64_t sampled(std::int64_t seqs) const;
  [[nodiscard]] Axis sampled(Rewrite& rewrite, const Axis& seqs) const;
  // New tokens of a prompt on each rank.
  [[nodiscard]] std::int64_t query(std::int64_t query) const;
  // Tokens that each row of it sees before the first, when there are `context` before the prompt:
  // the causal pairs of all ranks are those of the prompt.
  [[nodiscard]] std::int64_t context(std::int64_t query, std::int64_t context) const;
  // Of `tokens` rows: all of a step, those of its prompts, or these and cached ones.
  [[nodiscard]] std::int64_t local(std::int64_t tokens) const;
  [[nodiscard]] Axis local(Rewrite& rewrite, const Axis& tokens) const;
  // Rows of the KV cache that a step of `tokens` adds to on each rank: decodes append in turn.
  [[nodiscard]] std::int64_t stored(std::int64_t tokens) const;
  // Rows of prompts on each rank.
  [[nodiscard]] std::int64_t prefill_local() const;

 private:
  [[nodiscard]] std::int64_t decodes_local() const;
  [[nodiscard]] SplitPart decodes_part() const;

  int cp_;
  bool deals_decodes_;
  Place place_;
  std::int64_t tokens_ = 0;  // of the step
  std::int64_t prefill_ = 0;
  std::int64_t batch_ = 0;  // prompts, and the rows of each
  std::int64_t query_ = 0;
};

}  // namespace orrery
