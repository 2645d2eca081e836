#pragma once

// The table of kernels. EXECUTED(name, dtypes...): kernels of this project execute it in those
// dtypes, bound in kernels/<name>/bind.cpp; PRICED(name): a kernel of engines, which plans are made
// of and no code here runs. Macros, since only they can both declare a function of each kernel and
// call it. The spec is defined in kernels/<name>/<name>.cpp.
#define ORRERY_KERNELS(EXECUTED, PRICED)      \
  EXECUTED(gemm, kBf16, kFp8)                 \
  EXECUTED(batched_gemm, kBf16, kFp8)         \
  EXECUTED(attention_prefill, kBf16)          \
  EXECUTED(attention_decode, kBf16, kFp8)     \
  EXECUTED(mla_prefill, kBf16)                \
  EXECUTED(mla_decode, kBf16)                 \
  PRICED(mla_prefill_module)                  \
  PRICED(mla_decode_module)                   \
  EXECUTED(rms_norm, kBf16, kFp8)             \
  EXECUTED(add_rms_norm, kBf16, kFp8)         \
  EXECUTED(rope, kBf16)                       \
  EXECUTED(kv_append, kBf16, kFp8)            \
  EXECUTED(kv_gather, kBf16)                  \
  EXECUTED(silu_mul, kBf16, kFp8)             \
  EXECUTED(quantize, kFp8)                    \
  EXECUTED(residual_add, kBf16)               \
  EXECUTED(embedding, kBf16)                  \
  PRICED(moe_route)                           \
  PRICED(moe)                                 \
  EXECUTED(routing_scores, kBf16)             \
  EXECUTED(index_shuffling, kFp32)            \
  EXECUTED(gather_mul, kBf16, kFp8)           \
  EXECUTED(grouped_gemm, kBf16, kFp8)         \
  EXECUTED(grouped_gemm_scatter, kBf16, kFp8) \
  EXECUTED(scatter_add, kBf16)                \
  EXECUTED(combine_shuffling, kBf16, kFp8)    \
  EXECUTED(split_shuffling, kBf16, kFp8)      \
  EXECUTED(expert_gemm, kBf16, kFp8)          \
  EXECUTED(expert_gather, kBf16, kFp8)        \
  EXECUTED(sample, kBf16)                     \
  PRICED(sparse_index)
