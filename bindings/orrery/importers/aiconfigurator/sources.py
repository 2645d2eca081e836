"""What AIConfigurator's op tables hold, one row function per table, and the kernel each becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .reading import TableError

Row = dict[str, str]

# AIConfigurator's format names and ours (sim/plan/plan.h, DType).
DTYPES = {
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "int8": "int8",
}
# Its formats that have no name here: their rows are left out and counted.
UNNAMED_DTYPES = ("fp8_ootb", "fp8_static", "int8_wo", "nvfp4", "nvfp4_wo", "sq", "w4a8_mxfp4_mxfp8", "w4afp8")

# Dims of the one model whose attention modules were timed (deepseek-ai/DeepSeek-V3 config.json).
DEEPSEEK_V3 = {
    "hidden": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

# (hidden, inter, topk, experts) of the Nemotron-H models in the tables. Their experts have no gate: priced as three
# matrices, TensorRT-LLM's bf16 rows would reach 1,070 TFLOP/s, more than the device does.
UNGATED_EXPERTS = ((2048, 5120, 22, 512), (2688, 1856, 6, 128), (8192, 5120, 22, 512))

# FlashInfer's CUTLASS experts with a scale for each tensor, timed without the tactics that the engine tunes when it
# starts: 2 to 3 times the time of bf16 in the median and 3 to 6 times that of the same kernels under TensorRT-LLM,
# which are tuned.
UNTUNED_EXPERTS = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"

# Rows whose experts are split in both ways, along columns and by expert, over more GPUs than this are left out: the
# tables of SGLang and TensorRT-LLM cross every split with every other, and hold 45 % of their rows there.
MAX_GPUS_SPLIT_BOTH_WAYS = 16


class RowSkipped(Exception):
    """A row that is understood and left out; the text says why, and is counted."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """How one source table becomes one of our kernels."""

    ops: tuple[str, ...]  # names of the source table
    name: str  # our kernel
    dims: tuple[str, ...]
    row: Callable[[Row], tuple[tuple[int, ...], str]]  # dims and dtype
    extra: tuple[str, ...] = ()  # further columns copied as they are


def named_dtype(text: str) -> str:
    """Our name of a format; throws RowSkipped for one without a name here, TableError for an unknown one."""
    if text in UNNAMED_DTYPES:
        raise RowSkipped(f"format {text} has no name here")
    if text not in DTYPES:
        raise TableError(f"dtype '{text}'; expected one of {', '.join((*DTYPES, *UNNAMED_DTYPES))}")
    return DTYPES[text]


def source_name(row: Row) -> str:
    """The timed implementation; attention that computes in fp8 is told from the one that computes in bf16."""
    return row["kernel_source"] + (", fp8 arithmetic" if row.get("attn_dtype") == "fp8" else "")


def whole(row: Row, name: str) -> int:
    """A column as a number; throws TableError unless it is whole, 0 or more and one that int64 and double hold alike."""
    text = row[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= 2**53):
        raise TableError(f"column {name}: found '{text[:60]}'; expected a whole number, 0 or more")
    return int(text)


def _int(row: Row, *names: str) -> tuple[int, ...]:
    return tuple(whole(row, name) for name in names)


def _gemm(row: Row) -> tuple[tuple[int, ...], str]:
    return _int(row, "m", "n", "k"), named_dtype(row["gemm_dtype"])


def _attention_prefill(row: Row) -> tuple[tuple[int, ...], str]:
    batch, query, context, heads, kv_heads, head_dim, window = _int(
        row, "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    return (batch, query, context, heads, kv_heads, head_dim, window), named_dtype(row["kv_cache_dtype"])


def _attention_decode(row: Row) -> tuple[tuple[int, ...], str]:
    batch, heads, kv_heads, head_dim, window = _int(
        row, "batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    # One new token (isl 1) after `step` cached ones.
    context = sum(_int(row, "isl", "step"))
    return (batch, context, heads, kv_heads, head_dim, window), named_dtype(row["kv_cache_dtype"])


_KV_BITS = {"bfloat16": 16, "fp8": 8}
_MODULE_DIMS = tuple(DEEPSEEK_V3)


def _kv_bits(row: Row) -> int:
    if row["kv_cache_dtype"] not in _KV_BITS:
        raise TableError(f"kv_cache_dtype '{row['kv_cache_dtype']}'; expected one of {', '.join(_KV_BITS)}")
    return _KV_BITS[row["kv_cache_dtype"]]


def _mla_prefill_module(row: Row) -> tuple[tuple[int, ...], str]:
    dims = _int(row, "batch_size", "isl", "step", "num_heads") + tuple(DEEPSEEK_V3.values())
    return (*dims, _kv_bits(row)), named_dtype(row["gemm_type"])


def _mla_decode_module(row: Row) -> tuple[tuple[int, ...], str]:
    # The module tables give the whole sequence, the new token included, as `step`.
    dims = _int(row, "batch_size", "step", "num_heads") + tuple(DEEPSEEK_V3.values())
    return (*dims, _kv_bits(row)), named_dtype(row["gemm_type"])


def _mla_prefill(row: Row) -> tuple[tuple[int, ...], str]:
    batch, query, context, heads = _int(row, "batch_size", "isl", "step", "num_heads")
    qk = DEEPSEEK_V3["qk_nope_head_dim"] + DEEPSEEK_V3["qk_rope_head_dim"]
    dims = (batch, query, context, heads, qk, DEEPSEEK_V3["v_head_dim"])
    return dims, named_dtype(row["kv_cache_dtype"])


def _mla_decode(row: Row) -> tuple[tuple[int, ...], str]:
    batch, heads = _int(row, "batch_size", "num_heads")
    context = sum(_int(row, "isl", "step"))
    rank, rope = DEEPSEEK_V3["kv_lora_rank"], DEEPSEEK_V3["qk_rope_head_dim"]
    return (batch, context, heads, rank, rope), named_dtype(row["kv_cache_dtype"])


def _mla_bmm(row: Row) -> tuple[tuple[int, ...], str]:
    tokens, heads = _int(row, "num_tokens", "num_heads")
    rank = DEEPSEEK_V3["kv_lora_rank"]
    # Before attention q_nope [tokens, 128] x W_UK [128, 512] per head, after it [tokens, 512] x W_UV [512, 128].
    # The fp8 variant is block scaled.
    if row["op_name"] == "mla_gen_pre":
        n, k = rank, DEEPSEEK_V3["qk_nope_head_dim"]
    elif row["op_name"] == "mla_gen_post":
        n, k = DEEPSEEK_V3["v_head_dim"], rank
    else:
        raise TableError(f"op_name '{row['op_name']}'; expected mla_gen_pre or mla_gen_post")
    dtype = "fp8_block" if row["bmm_dtype"] == "fp8" else named_dtype(row["bmm_dtype"])
    return (heads, tokens, n, k), dtype


def _moe(row: Row) -> tuple[tuple[int, ...], str]:
    tokens, hidden, inter, topk, experts = _int(row, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    tp, ep = _int(row, "moe_tp_size", "moe_ep_size")
    dtype = named_dtype(row["moe_dtype"])
    if (hidden, inter, topk, experts) in UNGATED_EXPERTS:
        raise RowSkipped("experts without a gate (Nemotron-H), which the kernel moe does not describe")
    if row["kernel_source"] == UNTUNED_EXPERTS:
        raise RowSkipped("fp8 experts of FlashInfer without tuned tactics, slower than bf16")
    if min(tp, ep) > 1 and tp * ep > MAX_GPUS_SPLIT_BOTH_WAYS:
        raise RowSkipped(f"experts split by column and by expert over more than {MAX_GPUS_SPLIT_BOTH_WAYS} GPUs")
    if not tp or not ep:
        raise TableError(f"moe_tp_size {tp}, moe_ep_size {ep}; expected 1 or more")
    # The timed rank is rank 0, which holds one expert more when experts do not divide evenly.
    local = experts // ep + (1 if experts % ep else 0)
    return (tokens, hidden, inter // tp, topk, local, experts), dtype


def _quantize(row: Row) -> tuple[tuple[int, ...], str]:
    return _int(row, "m", "k"), named_dtype(row["quant_dtype"])


_CONTEXT_DIMS = ("batch", "query", "context", "heads")
_DECODE_DIMS = ("batch", "context", "heads")

KERNELS = (
    Kernel(ops=("gemm",), name="gemm", dims=("m", "n", "k"), row=_gemm),
    Kernel(ops=("context_attention",), name="attention_prefill",
           dims=(*_CONTEXT_DIMS, "kv_heads", "head_dim", "window"), row=_attention_prefill),
    Kernel(ops=("generation_attention",), name="attention_decode",
           dims=(*_DECODE_DIMS, "kv_heads", "head_dim", "window"), row=_attention_decode),
    Kernel(ops=("mla_context_module",), name="mla_prefill_module",
           dims=(*_CONTEXT_DIMS, *_MODULE_DIMS, "kv_bits"), row=_mla_prefill_module),
    Kernel(ops=("mla_generation_module",), name="mla_decode_module",
           dims=(*_DECODE_DIMS, *_MODULE_DIMS, "kv_bits"), row=_mla_decode_module),
    Kernel(ops=("mla_context", "context_mla"), name="mla_prefill",
           dims=(*_CONTEXT_DIMS, "qk_head_dim", "v_head_dim"), row=_mla_prefill),
    Kernel(ops=("mla_generation", "generation_mla"), name="mla_decode",
           dims=(*_DECODE_DIMS, "kv_lora_rank", "rope_dim"), row=_mla_decode),
    Kernel(ops=("mla_bmm",), name="batched_gemm", dims=("batch", "m", "n", "k"), row=_mla_bmm),
    Kernel(ops=("moe",), name="moe", dims=("tokens", "hidden", "inter", "topk", "experts", "experts_total"), row=_moe,
           extra=("distribution",)),
    Kernel(ops=("quantize_computescale",), name="quantize", dims=("tokens", "hidden"), row=_quantize),
)  # fmt: skip
