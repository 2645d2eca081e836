#pragma once

// What the cases of attention_prefill and mla_prefill share: lengths, sampled rows of the
// reference, and the comparison.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/reference.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/operands.h"

namespace orrery::prefill {

// `batch` sequences of `query` tokens after `context`; with `vary`, the later ones shorter.
std::vector<PrefillChunk> sequences(std::int64_t batch, std::int64_t query, std::int64_t context,
                                    bool vary);

// The reference over inputs as made, at a sample of (token, head) that always holds the first and
// the last token of every sequence.
class SampledReference {
 public:
  SampledReference(std::span<const PrefillChunk> sequences, const reference::AttentionShape& shape,
                   std::span<const double> q, std::span<const double> keys,
                   std::span<const double> values);

  // Of outputs [tokens, heads, v_dim] and LSE [heads, tokens].
  [[nodiscard]] std::vector<Difference> differences(const cuda::Stream& stream, const bf16* out,
                                                    const float* lse) const;

 private:
  struct Sample {
    std::int64_t row;
    std::int64_t head;
  };
  reference::AttentionShape shape_;
  std::int64_t tokens_ = 0;
  std::vector<Sample> samples_;
  std::vector<double> out_;
  std::vector<double> lse_;
};

}  // namespace orrery::prefill
