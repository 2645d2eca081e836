#include <cstdint>

#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/attention/rope/rope.h"
#include "kernels/compare/c_api.h"
#include "kernels/dense/quantize/quantize.h"
#include "kernels/rows/add_rms_norm/add_rms_norm.h"
#include "kernels/rows/embedding/embedding.h"
#include "kernels/rows/residual_add/residual_add.h"
#include "kernels/rows/rms_norm/rms_norm.h"
#include "kernels/rows/sample/sample.h"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery::compare {
namespace {

bf16* in_bf16(void* data) { return static_cast<bf16*>(data); }
const bf16* in_bf16(const void* data) { return static_cast<const bf16*>(data); }
fp8* in_fp8(void* data) { return static_cast<fp8*>(data); }
float* in_fp32(void* data) { return static_cast<float*>(data); }

template <typename T>
PagedKv<T> cache_of(void* keys, void* values, float key_scale, float value_scale) {
  return {.keys = static_cast<T*>(keys),
          .values = static_cast<T*>(values),
          .key_scale = key_scale,
          .value_scale = value_scale};
}

}  // namespace

extern "C" int orrery_residual_add(void* stream, void* residual, const void* x, std::int64_t tokens,
                                   std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    residual_add(on, in_bf16(residual), in_bf16(x), in_bf16(residual), tokens, hidden);
  });
}

// scales null: y is bf16.
extern "C" int orrery_rms_norm(void* stream, const void* x, const void* weight, void* y,
                               void* scales, std::int64_t tokens, std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (scales == nullptr) {
      rms_norm(on, in_bf16(x), in_bf16(weight), in_bf16(y), tokens, hidden);
    } else {
      rms_norm_fp8(on, in_bf16(x), in_bf16(weight), in_fp8(y), in_fp32(scales), tokens, hidden);
    }
  });
}

extern "C" int orrery_add_rms_norm(void* stream, void* residual, const void* x, const void* weight,
                                   void* y, void* scales, std::int64_t tokens,
                                   std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (scales == nullptr) {
      add_rms_norm(on, in_bf16(residual), in_bf16(x), in_bf16(weight), in_bf16(y), tokens, hidden);
    } else {
      add_rms_norm_fp8(on, in_bf16(residual), in_bf16(x), in_bf16(weight), in_fp8(y),
                       in_fp32(scales), tokens, hidden);
    }
  });
}

extern "C" int orrery_silu_mul(void* stream, const void* x, void* y, void* scales,
                               std::int64_t tokens, std::int64_t ffn) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (scales == nullptr) {
      silu_mul(on, in_bf16(x), in_bf16(y), tokens, ffn);
    } else {
      silu_mul_fp8(on, in_bf16(x), in_fp8(y), in_fp32(scales), tokens, ffn);
    }
  });
}

// group: 0 one scale of 1 for all, 128 blocks, else rowwise.
extern "C" int orrery_quantize(void* stream, const void* x, void* y, void* scales,
                               std::int64_t tokens, std::int64_t hidden, std::int64_t group) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (group == 0) {
      quantize_static(on, in_bf16(x), in_fp8(y), 1.0f, tokens, hidden);
    } else if (group == kQuantizeBlock) {
      quantize_blocks(on, in_bf16(x), in_fp8(y), in_fp32(scales), tokens, hidden);
    } else {
      quantize_rowwise(on, in_bf16(x), in_fp8(y), in_fp32(scales), tokens, hidden);
    }
  });
}

extern "C" int orrery_rope(void* stream, void* queries, void* keys, const void* positions,
                           const void* cosines, const void* sines, std::int64_t tokens,
                           std::int64_t query_heads, std::int64_t key_heads, std::int64_t head_dim,
                           std::int64_t interleaved) {
  return guarded(stream, [&](const cuda::Stream& on) {
    rope(on, in_bf16(queries), in_bf16(keys), static_cast<const std::int32_t*>(positions),
         static_cast<const float*>(cosines), static_cast<const float*>(sines),
         {.tokens = tokens,
          .query_heads = query_heads,
          .key_heads = key_heads,
          .head_dim = head_dim,
          .rotary_dim = head_dim,
          .interleaved = interleaved != 0});
  });
}

extern "C" int orrery_kv_append(void* stream, const void* keys, const void* values,
                                const void* slots, void* key_cache, void* value_cache,
                                std::int64_t tokens, std::int64_t width, std::int64_t is_fp8,
                                float key_scale, float value_scale) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const auto* const at = static_cast<const std::int64_t*>(slots);
    if (is_fp8 != 0) {
      kv_append(on, in_bf16(keys), in_bf16(values), at,
                cache_of<fp8>(key_cache, value_cache, key_scale, value_scale), tokens, width);
    } else {
      kv_append(on, in_bf16(keys), in_bf16(values), at,
                cache_of<bf16>(key_cache, value_cache, 1, 1), tokens, width);
    }
  });
}

extern "C" int orrery_embedding(void* stream, const void* ids, const void* table, void* y,
                                std::int64_t tokens, std::int64_t hidden, std::int64_t vocab) {
  return guarded(stream, [&](const cuda::Stream& on) {
    embedding(on, static_cast<const std::int32_t*>(ids), in_bf16(table), in_bf16(y), tokens, hidden,
              vocab);
  });
}

extern "C" int orrery_sample_argmax(void* stream, const void* logits, void* ids, std::int64_t seqs,
                                    std::int64_t vocab, std::int64_t is_fp32) {
  return guarded(stream, [&](const cuda::Stream& on) {
    auto* const to = static_cast<std::int32_t*>(ids);
    if (is_fp32 != 0) {
      sample_argmax(on, static_cast<const float*>(logits), to, seqs, vocab);
    } else {
      sample_argmax(on, in_bf16(logits), to, seqs, vocab);
    }
  });
}

extern "C" int orrery_sample_top_k(void* stream, const void* logits, const void* counters,
                                   void* ids, std::int64_t seqs, std::int64_t vocab, std::int64_t k,
                                   float temperature) {
  return guarded(stream, [&](const cuda::Stream& on) {
    sample_top_k(on, in_bf16(logits), static_cast<const std::uint64_t*>(counters),
                 static_cast<std::int32_t*>(ids), seqs, vocab,
                 {.k = static_cast<int>(k), .temperature = temperature});
  });
}

}  // namespace orrery::compare
