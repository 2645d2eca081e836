#include "kernels/attention/attention_prefill/prefill_case.h"

#include <algorithm>

namespace orrery::prefill {

std::vector<PrefillChunk> sequences(std::int64_t batch, std::int64_t query, std::int64_t context,
                                    bool vary) {
  constexpr std::int64_t kShorterQuery = 37;
  constexpr std::int64_t kShorterContext = 53;
  std::vector<PrefillChunk> result;
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t less_query = vary ? i * kShorterQuery % query : 0;
    const std::int64_t less_context = vary && context > 0 ? i * kShorterContext % context : 0;
    result.push_back({.query = query - less_query, .context = context - less_context});
  }
  return result;
}

SampledReference::SampledReference(std::span<const PrefillChunk> sequences,
                                   const reference::AttentionShape& shape,
                                   std::span<const double> q, std::span<const double> keys,
                                   std::span<const double> values)
    : shape_(shape) {
  const std::vector<reference::QueryToken> tokens = reference::query_tokens(sequences);
  tokens_ = static_cast<std::int64_t>(tokens.size());
  double terms = 0;
  for (const reference::QueryToken& token : tokens) {
    terms += static_cast<double>(shape.heads * (shape.qk_dim + shape.v_dim) * (token.position + 1));
  }
  constexpr double kTerms = 1e8;  // multiply-adds to spend
  const auto stride = static_cast<std::int64_t>(std::max(1.0, terms / kTerms)) | 1;
  std::int64_t count = 0;
  for (const reference::QueryToken& token : tokens) {
    const bool is_first = &token == &tokens.front() || token.key_row != (&token - 1)->key_row;
    const bool is_last = &token == &tokens.back() || token.key_row != (&token + 1)->key_row;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const bool is_end = (is_first || is_last) && (head == 0 || head + 1 == shape.heads);
      if (count++ % stride != 0 && !is_end) continue;
      const reference::AttentionRow row =
          reference::attention_row(q, keys, values, shape, token, head);
      samples_.push_back({.row = token.row, .head = head});
      out_.insert(out_.end(), row.out.begin(), row.out.end());
      lse_.push_back(row.lse);
    }
  }
}

std::vector<Difference> SampledReference::differences(const cuda::Stream& stream, const bf16* out,
                                                      const float* lse) const {
  constexpr double kLseBound = 1e-5;
  const auto count = static_cast<std::size_t>(tokens_ * shape_.heads);
  const auto v_dim = static_cast<std::size_t>(shape_.v_dim);
  const std::vector<bf16> all_out = host_copy(stream, out, count * v_dim);
  const std::vector<float> all_lse = host_copy(stream, lse, count);
  std::vector<double> sampled_out;
  std::vector<double> sampled_lse;
  for (const auto [row, head] : samples_) {
    const auto begin = static_cast<std::size_t>(row * shape_.heads + head) * v_dim;
    for (std::size_t d = 0; d < v_dim; ++d) {
      sampled_out.push_back(static_cast<float>(all_out[begin + d]));
    }
    sampled_lse.push_back(all_lse[static_cast<std::size_t>(row * shape_.heads + head)]);
  }
  return {difference("out", sampled_out, out_, kBf16Bound),
          difference("lse", sampled_lse, lse_, kLseBound)};
}

}  // namespace orrery::prefill
