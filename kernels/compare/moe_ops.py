"""Prints the kernel calls of routed layers, for `orrery-gpu calibrate --ops`.

python3 kernels/compare/moe_ops.py > ops.txt

For each layer here: its grouped GEMMs over rows and experts with rows; what routes and moves rows over tokens. Dense layers and SwiGLU have
tables whose grids cover these layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

Op = str


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Routed experts of `ffn` columns on a rank, `ranks` of which share them out; `shared`: columns of the shared expert."""

    hidden: int
    ffn: int
    experts: int
    topk: int
    shared: int = 0
    ranks: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("bf16",)
    groups: int = 1


LAYERS = {
    "Llama-4-Scout, tp 8": Layer(hidden=5120, ffn=1024, experts=16, topk=1, shared=1024, ranks=(1, 2, 4), dtypes=("bf16", "fp8")),
    "Llama-4-Maverick, tp 8": Layer(hidden=5120, ffn=1024, experts=128, topk=1, shared=1024, ranks=(1, 2, 4), dtypes=("bf16", "fp8")),
    "Llama-4-Scout": Layer(hidden=5120, ffn=8192, experts=16, topk=1, shared=8192, ranks=(1, 4)),
    "Qwen3-30B-A3B": Layer(hidden=2048, ffn=768, experts=128, topk=8, ranks=(1, 2, 4), dtypes=("bf16", "fp8")),
    "Mixtral-8x7B": Layer(hidden=4096, ffn=14336, experts=8, topk=2),
    "DeepSeek-V2-Lite": Layer(hidden=2048, ffn=1408, experts=64, topk=6, shared=2816),
}
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
ROWS = (1, 4, 16, 64, 128, 512, 2048, 4096, 16384, 32768)
# Of the experts on a rank, in quarters, those with rows; one besides.
QUARTERS = (2, 3, 4)
PADDED_TOKENS = (16, 64, 4096)


def grouped_gemms(layer: Layer) -> Iterator[Op]:
    """Both of a layer, and of as many rows as there may be."""
    for ranks in layer.ranks:
        groups = layer.experts // ranks
        counts = sorted({1} | {groups * quarter // 4 for quarter in QUARTERS} - {0})
        for rows in ROWS:
            # Many rows leave few experts without any.
            for active in [count for count in counts if count <= rows and (rows < 16 * groups or 4 * count >= 3 * groups)]:
                for n, k in ((2 * layer.ffn, layer.hidden), (layer.hidden, layer.ffn)):
                    for dtype in layer.dtypes if ranks == 1 else layer.dtypes[:1]:
                        yield f"grouped_gemm {dtype} rows={rows} n={n} k={k} groups={groups} active={active}"


def routing(layer: Layer) -> Iterator[Op]:
    """Scores, shuffling, and the rows' way to the experts and back."""
    for tokens in TOKENS:
        yield f"routing_scores bf16 tokens={tokens} hidden={layer.hidden} experts_total={layer.experts}"
        for ranks in layer.ranks:
            experts, rows = layer.experts // ranks, max(1, tokens * layer.topk // ranks)
            yield f"index_shuffling fp32 tokens={tokens} experts_total={layer.experts} topk={layer.topk} groups={layer.groups} experts={experts}"
            for dtype in layer.dtypes:
                yield f"gather_mul {dtype} tokens={tokens} rows={rows} hidden={layer.hidden}"
            for base in (0, 1) if layer.shared else (0,):
                yield f"scatter_add bf16 tokens={tokens} rows={rows} hidden={layer.hidden} base={base} ranks=1"
                if ranks > 1:  # all come back, rank by rank
                    yield f"scatter_add bf16 tokens={tokens} rows={tokens * layer.topk} hidden={layer.hidden} base={base} ranks={ranks}"
            if ranks > 1:
                for kernel in ("combine_shuffling", "split_shuffling"):
                    yield f"{kernel} bf16 rows={rows} hidden={layer.hidden} ranks={ranks} groups={experts}"


def other_designs(layer: Layer) -> Iterator[Op]:
    """Padded experts, and one gemm or slice for each."""
    for tokens in PADDED_TOKENS:
        for n, k in ((2 * layer.ffn, layer.hidden), (layer.hidden, layer.ffn)):
            for dtype in layer.dtypes:
                yield f"batched_gemm {dtype} batch={layer.experts} m={tokens} n={n} k={k}"
    for rows in (1, 4, 8, 16, 32, 128, 1024):
        for dtype in layer.dtypes:
            for n, k in ((2 * layer.ffn, layer.hidden), (layer.hidden, layer.ffn)):
                yield f"expert_gemm {dtype} m={rows} n={n} k={k} expert=0"
            yield f"expert_gather {dtype} rows={rows} hidden={layer.hidden} expert=0"


def ops() -> list[Op]:
    """Each call once."""
    parts = (grouped_gemms, routing, other_designs)
    return list(dict.fromkeys(op for layer in LAYERS.values() for part in parts for op in part(layer)))


def main() -> int:
    """One a line."""
    print("\n".join(ops()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
