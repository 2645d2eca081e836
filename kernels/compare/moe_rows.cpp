#include <cstdint>

#include "kernels/compare/c_api.h"
#include "kernels/experts/combine_shuffling/combine_shuffling.h"
#include "kernels/experts/gather_mul/gather_mul.h"
#include "kernels/experts/index_shuffling/index_shuffling.h"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/experts/scatter_add/scatter_add.h"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery::compare {
namespace {

const std::int32_t* ids(const void* data) { return static_cast<const std::int32_t*>(data); }
std::int32_t* ids(void* data) { return static_cast<std::int32_t*>(data); }
const float* floats(const void* data) { return static_cast<const float*>(data); }
const bf16* rows_of(const void* data) { return static_cast<const bf16*>(data); }

// Zeroed on the first call, outside of any capture; calls are on one stream at a time.
std::byte* shuffling_workspace() {
  static const cuda::DeviceBuffer<std::byte> workspace = [] {
    cuda::DeviceBuffer<std::byte> made(index_shuffling_workspace_bytes());
    ORRERY_CUDA(cudaMemset(made.get(), 0, made.size()));
    return made;
  }();
  return workspace.get();
}

ShuffledRows bf16_rows(const void* from, void* to, std::int64_t rows, std::int64_t hidden) {
  return {.from = from,
          .to = to,
          .from_rows = rows,
          .to_rows = rows,
          .row_bytes = static_cast<std::size_t>(hidden) * sizeof(bf16)};
}

}  // namespace

// x [tokens, hidden] and w [experts, hidden] bf16, scores fp32.
extern "C" int orrery_routing_scores(void* stream, const void* x, const void* w, void* scores,
                                     std::int64_t tokens, std::int64_t hidden, std::int64_t experts,
                                     std::int64_t sigmoid) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const RoutingScoresShape shape{
        .tokens = tokens,
        .hidden = hidden,
        .experts_total = experts,
        .activation = sigmoid != 0 ? RouterActivation::kSigmoid : RouterActivation::kSoftmax};
    routing_scores(on, {.x = rows_of(x), .w = rows_of(w), .scores = static_cast<float*>(scores)},
                   shape, routing_scores_tile(shape));
  });
}

// scores fp32 [tokens, experts]; all experts are here, there are no groups.
extern "C" int orrery_index_shuffling(void* stream, const void* scores, void* counts,
                                      void* num_rows, void* row_token, void* row_weight,
                                      void* token_rows, std::int64_t tokens, std::int64_t experts,
                                      std::int64_t topk) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const IndexShufflingShape shape{
        .tokens = tokens, .experts_total = experts, .topk = topk, .experts = experts};
    index_shuffling(on, floats(scores), nullptr, {},
                    {.counts = ids(counts),
                     .num_rows = ids(num_rows),
                     .row_token = ids(row_token),
                     .row_weight = static_cast<float*>(row_weight),
                     .token_rows = ids(token_rows)},
                    shape, index_shuffling_tile(shape), shuffling_workspace());
  });
}

// scales null: xs is bf16. row_weight null: not weighed.
extern "C" int orrery_gather_mul(void* stream, const void* x, const void* row_token,
                                 const void* num_rows, const void* row_weight, void* xs,
                                 void* scales, std::int64_t tokens, std::int64_t rows,
                                 std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const GatheredTokens gathered{.x = rows_of(x),
                                  .row_token = ids(row_token),
                                  .row_weight = floats(row_weight),
                                  .num_rows = ids(num_rows),
                                  .tokens = tokens,
                                  .rows = rows,
                                  .hidden = hidden};
    if (scales == nullptr) {
      gather_mul(on, gathered, static_cast<bf16*>(xs));
    } else {
      gather_mul_fp8(on, gathered, static_cast<fp8*>(xs), static_cast<float*>(scales));
    }
  });
}

// Of as many rows as num_rows says, `rows` at most. scales null: y is bf16.
extern "C" int orrery_silu_mul_rows(void* stream, const void* x, const void* num_rows, void* y,
                                    void* scales, std::int64_t rows, std::int64_t ffn) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (scales == nullptr) {
      silu_mul(on, rows_of(x), static_cast<bf16*>(y), rows, ffn, ids(num_rows));
    } else {
      silu_mul_fp8(on, rows_of(x), static_cast<fp8*>(y), static_cast<float*>(scales), rows, ffn,
                   ids(num_rows));
    }
  });
}

extern "C" int orrery_scatter_add(void* stream, const void* y, const void* token_rows,
                                  const void* row_weight, const void* base, void* out,
                                  std::int64_t tokens, std::int64_t rows, std::int64_t topk,
                                  std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    scatter_add(on,
                {.y = rows_of(y),
                 .token_rows = ids(token_rows),
                 .row_weight = floats(row_weight),
                 .base = rows_of(base),
                 .tokens = tokens,
                 .topk = topk,
                 .rows = rows,
                 .hidden = hidden},
                static_cast<bf16*>(out));
  });
}

// Dense: recv [rows, hidden] bf16 and recv_counts [ranks, experts].
extern "C" int orrery_combine_shuffling(void* stream, const void* recv, const void* recv_counts,
                                        void* out, void* counts, void* num_rows, std::int64_t rows,
                                        std::int64_t hidden, std::int64_t ranks,
                                        std::int64_t experts) {
  return guarded(stream, [&](const cuda::Stream& on) {
    combine_shuffling(
        on, {.counts = ids(recv_counts), .ranks = ranks, .experts = experts, .groups = experts},
        bf16_rows(recv, out, rows, hidden), ids(counts), ids(num_rows));
  });
}

extern "C" int orrery_split_shuffling(void* stream, const void* y, const void* recv_counts,
                                      void* out, std::int64_t rows, std::int64_t hidden,
                                      std::int64_t ranks, std::int64_t experts) {
  return guarded(stream, [&](const cuda::Stream& on) {
    split_shuffling(
        on, {.counts = ids(recv_counts), .ranks = ranks, .experts = experts, .groups = experts},
        bf16_rows(y, out, rows, hidden));
  });
}

}  // namespace orrery::compare
