"""Operands of routed layers: how many rows each expert has, weights, and rows quantised as PyTorch does."""

from __future__ import annotations

import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
ELEMENT_BYTES = {"bf16": 2, "fp8": 1}


def counts_of(load: str, groups: int, rows: int) -> list[int]:
    """Rows of each group, `rows` in all.

    balanced: as even as whole rows allow; ragged: each row's group drawn uniformly; zipf: the group of rank i gets a share
    of 1 / (i + 1), ranks in a fixed random order.
    """
    generator = torch.Generator().manual_seed(groups * 1_000_003 + rows)
    if load == "balanced":
        return [rows // groups + (group < rows % groups) for group in range(groups)]
    if load == "ragged":
        drawn = torch.randint(groups, (rows,), generator=generator)
        return torch.bincount(drawn, minlength=groups).tolist()
    if load == "zipf":
        shares = 1.0 / torch.arange(1, groups + 1, dtype=torch.float64)
        shares *= rows / shares.sum()
        counts = shares.floor().long()
        most_left = torch.argsort(shares - counts, descending=True, stable=True)
        counts[most_left[: rows - int(counts.sum())]] += 1
        return counts[torch.randperm(groups, generator=generator)].tolist()
    raise ValueError(f"load: found '{load}'; expected balanced, ragged or zipf")


def on_gpu(values: list[int]) -> torch.Tensor:
    """int32 on the GPU."""
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def normal(*shape: int, fp8: bool = False, scale: float = 1.0) -> torch.Tensor:
    """Random values on the GPU, bf16 or e4m3; large tensors are filled by their first axis."""
    if not fp8:
        return torch.empty(*shape, device="cuda", dtype=BF16).normal_(std=scale)
    made = torch.empty(*shape, device="cuda", dtype=FP8)
    for i in range(shape[0] if len(shape) > 2 else 1):
        part = made[i] if len(shape) > 2 else made
        part.copy_(torch.empty(part.shape, device="cuda", dtype=BF16).normal_(std=scale))
    return made


def row_scales(*shape: int) -> torch.Tensor:
    """fp32 in [0.5, 1.5)."""
    return torch.rand(*shape, device="cuda") + 0.5
