#pragma once

// The blocks a model is made of. Each adds its ops and weights to the step that is being lowered;
// parameter counts, memory and sharding all follow from the tensors that blocks declare.

#include "sim/model/lowering.h"

namespace orrery {

using LowerBlock = void (*)(Lowering& step, const LayerConfig& layer);

// By kind of attention and of FFN; throw std::invalid_argument when the table has none.
LowerBlock attention_block(AttentionKind kind);
LowerBlock ffn_block(FfnKind kind);

void lower_embedding(Lowering& step);
void lower_gqa(Lowering& step, const LayerConfig& layer);
void lower_mla(Lowering& step, const LayerConfig& layer);
void lower_mfa(Lowering& step, const LayerConfig& layer);
void lower_delta_net(Lowering& step, const LayerConfig& layer);
void lower_mamba2(Lowering& step, const LayerConfig& layer);
void lower_dense_ffn(Lowering& step, const LayerConfig& layer);
void lower_moe(Lowering& step, const LayerConfig& layer);
void lower_lm_head(Lowering& step);
void lower_sample(Lowering& step, TensorId logits);

// Rotary embedding, KV append, attention and output projection, shared by GQA and MFA. `q` holds
// the query heads; it is `kv_source` itself where q, k and v are one fused tensor.
void lower_softmax_attention(Lowering& step, const LayerConfig& layer, TensorId q,
                             TensorId kv_source);

// FFN of `columns`, SwiGLU unless the model says otherwise: gate_up, silu_mul, down into `output`.
// Names start with `name`.
void lower_swiglu(Lowering& step, std::string_view name, TensorId input, std::int64_t columns,
                  TensorId output);

}  // namespace orrery
