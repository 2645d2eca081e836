"""Linear layers beside torch.mm (bf16) and torch._scaled_mm (fp8).

With `overlap`, each of our launches may fetch weights while the launch before it still runs (GemmOptions::overlap), as it
may in a chain of layers; PyTorch's kernels have no such option.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from harness import BF16_FLOPS_PER_S, FP8_FLOPS_PER_S, Comparison, Library, sets_for

SQUARE = [(m, 8192, 8192) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)]
SINGLE = [(128, 10240, 8192), (128, 8192, 28672), (1, 4096, 4096), (64, 4096, 7168), (128, 4096, 7168), (64, 7168, 2048),
          (4096, 4096, 7168), (4096, 7168, 2048), (16384, 2048, 5120), (16384, 5120, 1024)]  # fmt: skip
# (n, k) of Llama-3.1's layers, 8B and 70B over 4 GPUs.
LLAMA = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (14336, 8192), (8192, 7168)]
SHAPES = SQUARE + SINGLE + [(m, n, k) for n, k in LLAMA for m in (1, 8, 16, 64, 256)]
MOST_OVERLAPPED = 64  # tokens of the kernel that can overlap


def _random(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(dtype)


def _shape(m: int, n: int, k: int, overlap: bool) -> dict[str, int]:
    return {"m": m, "n": n, "k": k} | ({"overlap": 1} if overlap else {})


def bf16(library: Library, m: int, n: int, k: int, overlap: bool) -> Comparison:
    """y = x w^T in bf16 against torch.mm."""
    bytes_moved = 2.0 * (m * k + n * k + m * n)
    sets = sets_for(bytes_moved)
    x = [_random(m, k, torch.bfloat16) for _ in range(sets)]
    w = [_random(n, k, torch.bfloat16) for _ in range(sets)]
    y = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    def ours(i: int) -> None:
        library.gemm(x[i], w[i], y[i], None, None, m, n, k, 0, 0, int(overlap))

    def outputs() -> dict[str, torch.Tensor]:
        y[0].fill_(float("nan"))
        ours(0)
        return {"ours": y[0].clone(), "torch": x[0] @ w[0].T}

    return Comparison(
        kernel="gemm", dtype="bf16", shape=_shape(m, n, k, overlap), ours=ours,
        peers={"torch": lambda i: torch.mm(x[i], w[i].T, out=y[i])},
        sets=sets, bytes=bytes_moved, flops=2.0 * m * n * k, peak_flops_per_s=BF16_FLOPS_PER_S, outputs=outputs,
    )  # fmt: skip


def fp8(library: Library, m: int, n: int, k: int, overlap: bool, rowwise: bool) -> Comparison:
    """y = x w^T in e4m3 against torch._scaled_mm, with fast accumulation and without."""
    bytes_moved = float(m * k + n * k + 2 * m * n)
    sets = sets_for(bytes_moved)
    x = [_random(m, k, torch.float8_e4m3fn) for _ in range(sets)]
    w = [_random(n, k, torch.float8_e4m3fn) for _ in range(sets)]
    y = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    x_scale = torch.rand((m, 1) if rowwise else (), device="cuda") + 0.5
    w_scale = torch.rand((1, n) if rowwise else (), device="cuda") + 0.5

    def ours(i: int) -> None:
        library.gemm(x[i], w[i], y[i], x_scale, w_scale, m, n, k, 1, int(rowwise), int(overlap))

    def peer(i: int, fast: bool) -> torch.Tensor:
        return torch._scaled_mm(x[i], w[i].T, x_scale, w_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)

    def outputs() -> dict[str, torch.Tensor]:
        y[0].fill_(float("nan"))
        ours(0)
        return {"ours": y[0].clone(), "torch fast": peer(0, True), "torch": peer(0, False)}

    return Comparison(
        kernel="gemm", dtype="fp8 rowwise" if rowwise else "fp8 per tensor", shape=_shape(m, n, k, overlap), ours=ours,
        peers={"torch fast": lambda i: peer(i, True), "torch": lambda i: peer(i, False)},
        sets=sets, bytes=bytes_moved, flops=2.0 * m * n * k, peak_flops_per_s=FP8_FLOPS_PER_S, outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All shapes in all three forms; few tokens also with overlap."""
    for m, n, k in SHAPES:
        for overlap in (False, True) if m <= MOST_OVERLAPPED else (False,):
            yield bf16(library, m, n, k, overlap)
            yield fp8(library, m, n, k, overlap, rowwise=True)
            yield fp8(library, m, n, k, overlap, rowwise=False)
