"""What a reader of each imported table must know; written into meta.yaml.

Statements on how a table was timed come from AIConfigurator's collectors (collector/<engine>/collect_*.py); figures are
of the H200 tables. docs/data.md tells more.
"""

from __future__ import annotations

_KV_FORMAT = "dtype is the KV cache format; arithmetic is bf16 unless the source says fp8"
_WINDOW = "window 0 means full attention"
_MLA_MODULE = "the whole attention block of one DeepSeek-V3 layer; heads are those of one rank"
_MLA_KERNEL = "dtype is the KV cache format; heads are those of one rank"
_TRITON_SHARE = (
    "with sharded experts Triton kernels also pass over the tokens of other ranks: at 16,384 tokens a row takes the"
    " share of its rank plus 0.1 to 0.3 of the time of all experts",
    "balanced rows of the DeepSeek-V3 shape (hidden 7168, inter 2048, 256 experts) are not balanced over ranks: half of"
    " the experts takes as long as all of them",
)

# By kernel; "" stands for every engine.
_NOTES: dict[str, dict[str, tuple[str, ...]]] = {
    "gemm": {
        "vllm": (
            "fp8: one linear layer with static per-tensor activation scale; the time includes quantising x from bf16",
            "fp8_block: includes per-token-group quantising of x; timed without a CUDA graph on one set of weights,"
            " so rows with small m hold host time (host_bound 1) and rows with small weights are served from L2",
            "host_bound 1: the row is at the host's floor, or beyond it by a hiccup, and well above its fp8 twin, so it"
            " is no GPU time",
            "bf16 and fp8: CUDA graph over six layers with their own weights",
        ),
        "sglang": (
            "fp8: dynamic per-token quantising of x from bf16, then the product; fp8_block: per-token-group quantising"
            " of x, then DeepGEMM; n and k of 128 or more",
            "CUDA graph over up to six layers with their own weights",
        ),
        "trtllm": (
            "fp8: a linear layer without an input scale, so the time includes dynamic per-tensor quantising of x, 7.2"
            " us more than with vLLM's static scale (median of m up to 64, n up to 512, k up to 4,096); least row 11.8"
            " us",
            "fp8_block: includes quantising x",
            "CUDA graph over up to five layers with their own weights, one where the weights exceed L2",
        ),
    },
    "attention_prefill": {
        "": (_KV_FORMAT, _WINDOW),
        "sglang": ("the time includes writing keys and values into the cache",),
        "trtllm": ("the time includes rotary embedding and writing keys and values into the cache",),
    },
    "attention_decode": {
        "": (_KV_FORMAT, _WINDOW, "context counts the new token"),
        "sglang": ("the time includes writing keys and values into the cache",),
        "trtllm": ("the time includes rotary embedding and writing keys and values into the cache",),
    },
    "mla_prefill_module": {"": (_MLA_MODULE,)},
    "mla_decode_module": {"": (_MLA_MODULE,)},
    "mla_prefill": {"": (_MLA_KERNEL,)},
    "mla_decode": {"": (_MLA_KERNEL,)},
    "batched_gemm": {
        "": ("products of the absorbed MLA form with W_UK (n 512, k 128) and W_UV (n 128, k 512)",),
    },
    "moe": {
        "": (
            "tokens are all tokens routed over the expert group; inter and experts are those of one rank",
            "power_law rows time the rank with the most tokens: the collector draws tokens per expert from a power law"
            " and swaps the fullest group of experts to rank 0, which is timed",
        ),
        "vllm": _TRITON_SHARE,
        "sglang": _TRITON_SHARE,
    },
    "quantize": {
        "": (
            "dynamic per-token minus static fp8 quantisation: what a dynamic scale adds to a gemm fp8 row,"
            " which holds the static quantisation already",
        ),
    },
}


def notes_of(kernel: str, engine: str) -> tuple[str, ...]:
    """The notes on one kernel's table from one engine."""
    notes = _NOTES[kernel]
    return (*notes.get("", ()), *notes.get(engine, ()))
