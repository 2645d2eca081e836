"""Sampling beside PyTorch's arg-max and top-k."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness import Comparison, Library
from streams import Stream

VOCAB = 128256


def argmax(library: Library) -> Iterator[Comparison]:
    """The largest logit against torch.argmax."""
    for dtype in (torch.bfloat16, torch.float32):
        for seqs in (1, 8, 64, 256, 1024):
            stream = Stream(library, reads=1, writes=0, bytes_moved=float(seqs * VOCAB * dtype.itemsize))
            logits = [torch.randn(seqs, VOCAB, device="cuda", dtype=dtype) for _ in range(stream.sets)]
            ids = torch.empty(seqs, device="cuda", dtype=torch.int32)

            def ours(i: int) -> None:
                library.sample_argmax(logits[i], ids, seqs, VOCAB, int(dtype == torch.float32))

            def outputs() -> dict[str, torch.Tensor]:
                ours(0)
                rows = torch.arange(seqs, device="cuda")
                # Equal logits: torch's choice among them is its own, so the values are compared.
                return {"ours": logits[0][rows, ids.long()], "torch": logits[0].amax(dim=-1)}

            yield Comparison(
                kernel="sample", dtype="bf16" if dtype == torch.bfloat16 else "fp32",
                shape={"seqs": seqs, "vocab": VOCAB}, ours=ours,
                peers={"torch": lambda i: torch.argmax(logits[i], dim=-1)} | stream.peer(), sets=stream.sets,
                bytes=stream.bytes, flops=seqs * VOCAB, outputs=outputs, tolerance=0.0,
            )  # fmt: skip


def top_k(library: Library) -> Iterator[Comparison]:
    """A draw from the 50 largest logits against torch.topk, softmax and multinomial; outputs are compared at k = 1."""
    k = 50
    for seqs in (1, 64, 256):
        stream = Stream(library, reads=1, writes=0, bytes_moved=float(seqs * VOCAB * 2))
        logits = [torch.randn(seqs, VOCAB, device="cuda", dtype=torch.bfloat16) for _ in range(stream.sets)]
        ids = torch.empty(seqs, device="cuda", dtype=torch.int32)
        counters = torch.arange(seqs, device="cuda")

        def peer(i: int) -> None:
            values, indices = torch.topk(logits[i], k)
            indices.gather(1, torch.multinomial(torch.softmax(values.float(), dim=-1), 1))

        def outputs() -> dict[str, torch.Tensor]:
            library.sample_top_k(logits[0], counters, ids, seqs, VOCAB, 1, 1.0)
            rows = torch.arange(seqs, device="cuda")
            return {"ours": logits[0][rows, ids.long()], "torch": logits[0].amax(dim=-1)}

        yield Comparison(
            kernel="sample", dtype="bf16", shape={"seqs": seqs, "vocab": VOCAB, "top_k": k},
            ours=lambda i: library.sample_top_k(logits[i], counters, ids, seqs, VOCAB, k, 1.0),
            peers={"torch": peer} | stream.peer(), sets=stream.sets, bytes=stream.bytes, flops=seqs * VOCAB,
            outputs=outputs, tolerance=0.0,
        )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this file."""
    yield from argmax(library)
    yield from top_k(library)
