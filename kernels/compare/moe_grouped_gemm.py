"""Grouped GEMMs of routed layers beside torch._grouped_mm (bf16) and torch._scaled_grouped_mm (fp8, a scale per row).

Counts are on the device for all of them. A shape that a peer refuses has no row with that peer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from harness import BF16_FLOPS_PER_S, FP8_FLOPS_PER_S, Call, Comparison, Library, sets_for
from moe_operands import BF16, ELEMENT_BYTES, counts_of, normal, on_gpu, row_scales

# (groups, rows, n, k, load)
Shape = tuple[int, int, int, int, str]

# Llama-4 over 8 GPUs: gate and up in one, down.
TP8 = ((2048, 5120), (5120, 1024))
DECODE: list[Shape] = [(groups, 128, n, k, "balanced") for groups in (16, 128) for n, k in TP8]
PREFILL: list[Shape] = [(groups, 16384, n, k, load) for groups in (16, 128) for n, k in TP8
                        for load in ("balanced", "ragged", "zipf")]  # fmt: skip
# Rows drawn as a router draws them: idle experts among them.
DECODE_RAGGED: list[Shape] = [(groups, 128, n, k, "ragged") for groups in (16, 128) for n, k in TP8]
# All columns of an expert on one GPU: Llama-4 Scout, Qwen3-30B-A3B (top-8 of 128), Mixtral-8x7B (top-2), DeepSeek-V2-Lite (top-6 of 64).
TP1: list[Shape] = [
    *((16, rows, n, k, "balanced") for rows in (128, 16384) for n, k in ((16384, 5120), (5120, 8192))),
    *((128, tokens * 8, n, k, "ragged") for tokens in (16, 64, 4096) for n, k in ((1536, 2048), (2048, 768))),
    *((8, tokens * 2, n, k, "ragged") for tokens in (64, 4096) for n, k in ((28672, 4096), (4096, 14336))),
    *((64, tokens * 6, n, k, "ragged") for tokens in (64, 4096) for n, k in ((2816, 2048), (2048, 1408))),
]
SHAPES = DECODE + PREFILL + DECODE_RAGGED + TP1


class Operands:
    """`sets` copies of x [rows, k], w [groups, n, k] and y [rows, n]; counts and offsets are the same for all."""

    def __init__(self, dtype: str, shape: Shape) -> None:
        self.groups, self.rows, self.n, self.k, self.load = shape
        self.dtype = dtype
        self.is_fp8 = dtype == "fp8"
        counts = counts_of(self.load, self.groups, self.rows)
        self.active = sum(count > 0 for count in counts)
        self.sets = sets_for(self.bytes())
        self.counts = on_gpu(counts)
        self.ends = torch.cumsum(self.counts, 0, dtype=torch.int32)
        self.x = [normal(self.rows, self.k, fp8=self.is_fp8) for _ in range(self.sets)]
        self.w = [normal(self.groups, self.n, self.k, fp8=self.is_fp8) for _ in range(self.sets)]
        self.y = [torch.empty(self.rows, self.n, device="cuda", dtype=BF16) for _ in range(self.sets)]
        self.x_scales = row_scales(self.rows) if self.is_fp8 else None
        self.w_scales = row_scales(self.groups, self.n) if self.is_fp8 else None

    def bytes(self) -> float:
        """Of x, y and the weights of experts that have rows, without scales."""
        element = ELEMENT_BYTES[self.dtype]
        return float(self.active * self.n * self.k * element + self.rows * (self.k * element + self.n * 2))

    def peer(self, i: int) -> torch.Tensor:
        """PyTorch's grouped GEMM."""
        w = self.w[i].transpose(-2, -1)
        if self.is_fp8:
            return torch._scaled_grouped_mm(self.x[i], w, self.x_scales, self.w_scales, offs=self.ends, out_dtype=BF16, use_fast_accum=True)
        return torch._grouped_mm(self.x[i], w, offs=self.ends)


def accepted(peers: dict[str, Call]) -> dict[str, Call]:
    """The peers that take set 0; says which do not, and why."""
    taken = {}
    for name, call in peers.items():
        try:
            call(0)
            torch.cuda.synchronize()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            print(f"REFUSED by {name}: {str(error).splitlines()[0]}", flush=True)
        else:
            taken[name] = call
    return taken


def grouped_gemm(library: Library, dtype: str, shape: Shape, overlap: bool = False) -> Comparison:
    """y = x w[group of the row]^T; with `overlap` weights are fetched while the launch before it still runs."""
    at = Operands(dtype, shape)

    def ours(i: int) -> None:
        library.grouped_gemm(at.x[i], at.w[i], at.counts, at.y[i], at.x_scales, at.w_scales,
                             at.rows, at.n, at.k, at.groups, int(at.is_fp8), at.rows, at.active, int(overlap))  # fmt: skip

    peers = accepted({"torch": at.peer})

    def outputs() -> dict[str, torch.Tensor]:
        at.y[0].fill_(float("nan"))
        ours(0)
        return {"ours": at.y[0].clone()} | {name: call(0) for name, call in peers.items()}

    return Comparison(
        kernel="grouped_gemm", dtype="fp8 rowwise" if at.is_fp8 else "bf16",
        shape={"groups": at.groups, "rows": at.rows, "n": at.n, "k": at.k, "load": at.load} | ({"overlap": 1} if overlap else {}),
        ours=ours, peers=peers, sets=at.sets, bytes=at.bytes(), flops=2.0 * at.rows * at.n * at.k,
        peak_flops_per_s=FP8_FLOPS_PER_S if at.is_fp8 else BF16_FLOPS_PER_S, outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All shapes in bf16 and in fp8."""
    for shape in SHAPES:
        for dtype in ("bf16", "fp8"):
            yield grouped_gemm(library, dtype, shape)
            if shape in DECODE:
                yield grouped_gemm(library, dtype, shape, overlap=True)
