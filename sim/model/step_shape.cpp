#include "sim/model/step_shape.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace orrery {
namespace {

// Of one sequence, and of the new ones of a step; keeps what is counted of them inside 64 bits.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 32;
constexpr std::int64_t kMostDecodes = std::int64_t{1} << 30;

void check_batch(const Batch& batch) {
  std::int64_t tokens = 0;
  for (const PrefillChunk& chunk : batch.prefill) {
    if (chunk.query < 1 || chunk.context < 0) {
      throw std::invalid_argument("a prefill chunk has query " + std::to_string(chunk.query) +
                                  " and context " + std::to_string(chunk.context) +
                                  ", expected query >= 1 and context >= 0");
    }
    // What came before is at most as much, so the sum does not overflow.
    tokens += std::min(chunk.query, kMostTokens);
    if (chunk.query > kMostTokens || chunk.context > kMostTokens || tokens > kMostTokens) {
      throw std::invalid_argument("a prefill chunk has query " + std::to_string(chunk.query) +
                                  " and context " + std::to_string(chunk.context) +
                                  ", expected at most 2^32 tokens of a context and of a step");
    }
  }
  if (batch.num_decodes < 0) {
    throw std::invalid_argument("num_decodes is " + std::to_string(batch.num_decodes) +
                                ", expected >= 0");
  }
  if (batch.num_decodes > kMostDecodes || batch.decode_context / kMostTokens > batch.num_decodes) {
    throw std::invalid_argument("decode_context is " + std::to_string(batch.decode_context) +
                                " for " + std::to_string(batch.num_decodes) +
                                " decodes, expected at most 2^30 decodes, of 2^32 tokens each");
  }
  constexpr std::int64_t kMostQuery = 1024;
  if (batch.decode_query < 1 || batch.decode_query > kMostQuery) {
    throw std::invalid_argument("decode_query is " + std::to_string(batch.decode_query) +
                                ", expected 1 to 1024");
  }
  const bool has_context = batch.decode_context >= batch.num_decodes * batch.decode_query &&
                           (batch.num_decodes > 0 || batch.decode_context == 0);
  if (!has_context) {
    throw std::invalid_argument(
        "decode_context is " + std::to_string(batch.decode_context) + " for " +
        std::to_string(batch.num_decodes) + " decodes, expected at least " +
        (batch.decode_query == 1 ? "one token" : std::to_string(batch.decode_query) + " tokens") +
        " each and 0 for none");
  }
  if (num_tokens(batch) == 0) {
    throw std::invalid_argument("the batch is empty, expected at least one token");
  }
}

}  // namespace

StepShape step_shape(const Batch& batch) {
  check_batch(batch);
  StepShape shape{.tokens = num_tokens(batch),
                  .seqs = num_sampled(batch),
                  .num_decodes = batch.num_decodes,
                  .decode_rows = batch.num_decodes * batch.decode_query,
                  .decode_context = mean_context(batch),
                  .decode_query = batch.decode_query};
  if (batch.prefill.empty()) return shape;

  double tokens = 0;
  double squares = 0;
  double work = 0;
  for (const PrefillChunk& chunk : batch.prefill) {
    const auto query = static_cast<double>(chunk.query);
    tokens += query;
    squares += query * query;
    work += query * (static_cast<double>(chunk.context) + query / 2);
    shape.prefill_cached += chunk.context;
  }
  shape.prefill_tokens = shape.tokens - shape.decode_rows;
  shape.prefill_batch = std::max<std::int64_t>(1, std::llround(tokens * tokens / squares));
  shape.prefill_query = std::llround(tokens / static_cast<double>(shape.prefill_batch));
  const double context = work / tokens - static_cast<double>(shape.prefill_query) / 2;
  shape.prefill_context = std::max<std::int64_t>(0, std::llround(context));
  return shape;
}

}  // namespace orrery
