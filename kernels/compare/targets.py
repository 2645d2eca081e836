"""The figures that our kernels aim at, and what is known where one is missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


def speedup(row: Row) -> float:
    """The peer's time over ours."""
    return row["peer_us"] / row["ours_us"]


def time_ratio(row: Row) -> float:
    """Our time over the peer's."""
    return row["ours_us"] / row["peer_us"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """`figure` of every row that `applies` is to be at least (or at most) `bound`; `reason` is printed where one is not."""

    kernel: str
    text: str
    applies: Callable[[Row], bool]
    bound: float
    figure: Callable[[Row], float] = speedup
    at_least: bool = True
    unit: str = "x"
    reason: str = ""

    def show(self, value: float) -> str:
        """The figure with its unit."""
        return f"{value:.2f} {self.unit}"


def _is(kernel: str, condition: Callable[[Row], bool] = lambda row: True) -> Callable[[Row], bool]:
    return lambda row: row["kernel"] == kernel and condition(row)


def kv_bytes(row: Row) -> float:
    """Bytes of keys and values that a row of attention_decode reads."""
    shape = row["shape"]
    element = 1 if row["dtype"] == "fp8" else 2
    return 2.0 * shape["batch"] * shape["context"] * shape["kv_heads"] * shape["head_dim"] * element


ELEMENTWISE = ("residual_add", "rms_norm", "add_rms_norm", "silu_mul", "quantize", "rope", "kv_append", "embedding", "sample")


def is_elementwise(row: Row) -> bool:
    """Whether the kernel is bound by memory alone; top-k sampling reads its logits twice and sorts."""
    return row["kernel"] in ELEMENTWISE and "top_k" not in row["shape"]


def moved_bytes(row: Row) -> float:
    """Bytes that a memory-bound kernel moves, from its limit at the data sheet's 4.8 TB/s."""
    return row["limit_us"] * 4.8e6


def is_cudnn(row: Row) -> bool:
    """Whether the peer is cuDNN's attention."""
    return "cudnn" in row["peer"].lower()


def is_nccl(row: Row) -> bool:
    """Whether the peer is NCCL."""
    return row["peer"].startswith("NCCL")


TARGETS: tuple[Target, ...] = (
    Target(kernel="gemm", text="0.98 of torch at every shape", applies=_is("gemm"), bound=0.98),
    Target(kernel="gemm", text="1.1 times torch at m <= 64", applies=_is("gemm", lambda row: row["shape"]["m"] <= 64), bound=1.1),
    Target(
        kernel="attention_prefill", text="0.9 of cuDNN, causal, head_dim 128, 2K to 32K", bound=0.9,
        applies=_is("attention_prefill", lambda row: is_cudnn(row) and row["shape"]["head_dim"] == 128
                    and row["shape"].get("context", 0) == 0 and 2048 <= row["shape"]["query"] <= 32768),
    ),
    Target(
        kernel="attention_decode", text="0.95 of cuDNN for KV of 256 MB and more", bound=0.95,
        applies=_is("attention_decode", lambda row: is_cudnn(row) and kv_bytes(row) >= 256e6),
    ),
    Target(
        kernel="attention_decode", text="not slower than cuDNN at batch 1, 8K context", bound=1.0,
        applies=_is("attention_decode", lambda row: is_cudnn(row) and row["shape"]["batch"] == 1 and row["shape"]["context"] == 8192),
    ),
    Target(
        kernel="all_reduce", text="at most 0.6 of NCCL's time up to 1 MB, 2 and 4 GPUs", bound=0.6, at_least=False, figure=time_ratio,
        applies=_is("all_reduce", lambda row: is_nccl(row) and row["gpus"] in (2, 4) and row["shape"]["bytes"] <= 1 << 20),
    ),
    Target(
        kernel="all_reduce", text="not slower than NCCL above 1 MB", bound=1.0, at_least=False, figure=time_ratio,
        applies=_is("all_reduce", lambda row: is_nccl(row) and row["shape"]["bytes"] > 1 << 20),
    ),
    Target(
        kernel="element-wise", text="0.9 of a stream of as many bytes, above 64 MB", bound=0.9,
        applies=lambda row: is_elementwise(row) and row["peer"] == "stream" and moved_bytes(row) > 64e6,
    ),
    Target(
        kernel="element-wise", text="not slower than torch (compiled where that fuses)", bound=1.0,
        applies=lambda row: is_elementwise(row) and row["peer"] in ("torch", "torch.compile"),
    ),
)  # fmt: skip
