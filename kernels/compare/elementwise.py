"""Element-wise kernels beside PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness import Comparison, Library, sets_for


def residual_add(library: Library) -> Iterator[Comparison]:
    """residual += x against torch.add in place."""
    for tokens, hidden in ((64, 8192), (4096, 8192), (16384, 8192)):
        bytes_moved = 3.0 * tokens * hidden * 2
        sets = sets_for(bytes_moved)
        residual = [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        x = [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

        def outputs() -> dict[str, torch.Tensor]:
            peer = residual[0] + x[0]
            ours = residual[0].clone()
            library.residual_add(ours, x[0], tokens, hidden)
            return {"ours": ours, "torch": peer}

        yield Comparison(
            kernel="residual_add", dtype="bf16", shape={"tokens": tokens, "hidden": hidden},
            ours=lambda i: library.residual_add(residual[i], x[i], tokens, hidden),
            peers={"torch": lambda i: residual[i].add_(x[i])},
            sets=sets, bytes=bytes_moved, flops=tokens * hidden, outputs=outputs,
        )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this family."""
    yield from residual_add(library)
