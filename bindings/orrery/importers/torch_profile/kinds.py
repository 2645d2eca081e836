"""What a kernel of an engine does, from its name and from the framework's call that launched it.

The tables are tried in order. A kernel that none names has the kind UNKNOWN: it stays in the remainder, under its name.
"""

from __future__ import annotations

import functools
import re

UNKNOWN = "unknown"
ELEMENTWISE = "elementwise"  # copies, sums, products: of the op at whose place they stand

# Names of kernels that say what they do. Sources: the engines' own sources and traces (vLLM, SGLang, TensorRT-LLM, FlashInfer, torch).
_BY_NAME = (
    ("comm", r"nccl|all_?reduce|allgather|all_gather|reduce_?scatter|all_to_all|cross_device_reduce|multimem|oneshot|twoshot|deep_ep"),
    ("moe", r"fused_moe|moe_align|moe_sum|grouped_?gemm|GroupProblemShape|group_gemm|grouped_mm|moe_gemm|bmm_.*swiglu|expand_?input_?row|finalize_?moe"
            r"|count_and_sort_expert|permute|silu_and_mul_.*moe|topk_softmax_.*sum|prepare_grouped|moe_kernel"),
    ("topk", r"topk_?softmax|topkGating|topk_gating|grouped_topk|biased_grouped|topk_sigmoid|moe.*topk"),
    ("attention", r"flash_?(fwd|attn|mla)|FlashAttn|fmha|fmhca|attention|attn_fwd|paged_attention|BatchDecode|BatchPrefill|SinglePrefill|SingleDecode"
                  r"|unified_attention|flash::|sdpa|kernel_mha|mmha|masked_multihead|decode_att|_fwd_kernel_stage|_fwd_grouped_kernel|xqa|PersistentVariableLengthMergeStates"
                  r"|merge_attn|flash_combine|FwdCombine|split_?kv_?combine|prepare_varlen"),
    ("kv_write", r"reshape_and_cache|store_kv|store_kvcache|set_kv_buffer|append_paged|AppendPaged|kv_cache_(write|update|store)|concat_and_cache|copy_to_paged"),
    ("norm", r"rms_?norm|RMSNorm|layer_?norm|rsqrt"),
    ("rope", r"rope|rotary|rotate_half|BatchQKApply"),
    ("activation", r"silu|swiglu|gelu|act_and_mul|gated_act"),
    ("quant", r"quant(?!ile)|scaled_fp8|per_token_group|dynamic_per_token|convert_fp8"),
    ("sample", r"sampl|argmax|top_?p\b|top_?k_?(mask|renorm|sampling)|multinomial|gumbel|cunn_SoftMax|greedy|apply_penalt|logits_process|airTopP|radixTopK"),
    ("embedding", r"embedding|indexSelectLargeIndex|vectorized_gather|vocab_parallel"),
    ("gemm", r"gemm|nvjet|cublas|cutlass|splitK|sm90_xmma|ampere_.*_tn|wgmma|dot_kernel|gemv|machete|marlin|deep_gemm|matmul|s16816|h16816|Kernel2"),
    ("topk", r"topk|radixSort|bitonicSort|gatherTopK"),
)  # fmt: skip
# The call that launched a kernel, where the kernel's own name says little (torch's element-wise kernels).
_BY_OP = (
    ("comm", r"nccl|all_reduce|allreduce|all_gather|reduce_scatter"),
    ("attention", r"scaled_dot_product|_efficient_attention|_flash_attention|attention"),
    ("moe", r"_grouped_mm|grouped_mm|fused_moe|histc|bincount|argsort|aten::sort|index_add|scatter_add"),
    ("gemm", r"aten::(mm|addmm|linear|matmul|bmm|_scaled_mm|baddbmm)$|scaled_mm|gemm"),
    ("kv_write", r"index_copy_|index_put_|reshape_and_cache|store_kv"),
    ("gather", r"aten::index_select|aten::gather$|aten::index$|aten::take|repeat_interleave"),
    ("embedding", r"aten::embedding"),
    ("norm", r"rms_norm|layer_norm|aten::(pow|mean|rsqrt)"),
    ("rope", r"rotary|rope|aten::(cos|sin|neg)$"),
    ("activation", r"silu|gelu|aten::sigmoid"),
    ("sample", r"argmax|multinomial|aten::sampl"),
    ("softmax", r"softmax"),
    ("topk", r"aten::topk"),
    ("pad", r"constant_pad"),
    (ELEMENTWISE, r"aten::(copy_|_to_copy|to|contiguous|clone|mul_?|add_?|sub|div_?|cat|stack|fill_|zero_|zeros|ones|arange|sum|cumsum|where|masked_fill_?"
                  r"|triu|tril|eq|ne|lt|le|gt|ge|expand|repeat|slice|floor_divide|remainder|bitwise_and|logical_\w+|full|ones_like|zeros_like|max|min|maximum|minimum"
                  r"|clamp\w*|reciprocal|item|_local_scalar_dense|unsqueeze|reshape|index_fill_|any|all|ceil|isin|nonzero|permute|flip)$"),
)  # fmt: skip
# torch's own kernels and copies, whatever called them.
_GENERIC = re.compile(
    r"elementwise_kernel|CatArrayBatched|\breduce_kernel|fill_|copy_kernel|Memcpy|Memset|triton_|vectorized|DeviceScan|DeviceSelect", re.I
)
# Kernels that torch.compile makes are named after the calls that they fuse; the first that stands here decides.
_FUSED = (
    ("norm", r"rsqrt|mean.*pow|pow.*mean|rms_norm|native_layer_norm"),
    ("activation", r"silu|gelu|sigmoid"),
    ("rope", r"(^|_)(cos|sin|neg|cat|index_select)(_|$)"),
    ("embedding", r"embedding"),
)


def _compiled(table: tuple[tuple[str, str], ...]) -> list[tuple[str, re.Pattern[str]]]:
    return [(kind, re.compile(pattern, re.I)) for kind, pattern in table]


_NAMES, _OPS, _FUSIONS = _compiled(_BY_NAME), _compiled(_BY_OP), _compiled(_FUSED)


@functools.lru_cache(maxsize=1 << 14)
def kind_of(name: str, op: str = "", *, is_copy: bool = False) -> str:
    """The kind of a kernel, or UNKNOWN."""
    if is_copy:
        return ELEMENTWISE
    if op in ("aten::bmm", "aten::baddbmm"):
        return "bmm"
    if name.startswith("triton_") and "_fused_" in name:
        return next((kind for kind, pattern in _FUSIONS if pattern.search(name)), ELEMENTWISE)
    is_generic = _GENERIC.search(name) is not None or "at::native" in name
    tables = (_OPS, _NAMES) if op and is_generic else (_NAMES, _OPS)
    for table in tables:
        text = op if table is _OPS else name
        if is_generic and table is _NAMES and not _says_much(name):
            continue
        for kind, pattern in table:
            if pattern.search(text):
                return kind
    return ELEMENTWISE if is_generic else UNKNOWN


def _says_much(name: str) -> bool:
    """Whether a kernel of torch has the name of what it computes, as reductions of argmax and soft-max have."""
    return (
        re.search(
            r"argmax|ArgMax|SoftMax|silu|gelu|RMSNorm|LayerNorm|rsqrt|embedding|indexSelect|vectorized_gather|index_copy|topk|TopK|sort|multinomial",
            name,
        )
        is not None
    )
