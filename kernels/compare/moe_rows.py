"""Kernels that move rows between tokens and experts, beside PyTorch's and a plain stream of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from elementwise import compiled, from_fp8, to_fp8
from harness import Comparison, Library
from moe_operands import BF16, FP8, counts_of, normal, on_gpu
from streams import Stream

TOKENS = (128, 16384)
HIDDEN = 5120  # of Llama-4
FFN = 1024  # its expert columns over 8 GPUs
RANKS = 4
EXPERTS = 4  # on each of them


def gather_scaled(x: torch.Tensor, row_token: torch.Tensor, row_weight: torch.Tensor) -> torch.Tensor:
    """Rows of x, weighed."""
    return (torch.index_select(x, 0, row_token).float() * row_weight[:, None]).to(BF16)


def gather_scaled_fp8(x: torch.Tensor, row_token: torch.Tensor, row_weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of x, weighed, in e4m3 with a scale each."""
    return to_fp8(torch.index_select(x, 0, row_token).float() * row_weight[:, None])


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) up."""
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(BF16)


def swiglu_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(gate) up in e4m3 with a scale per row."""
    gate, up = x.float().chunk(2, dim=-1)
    return to_fp8(F.silu(gate) * up)


def gather_sum(base: torch.Tensor, y: torch.Tensor, token_rows: torch.Tensor) -> torch.Tensor:
    """base + the rows of each token: faster in bf16 than index_add_, which adds atomically."""
    return (base.float() + y[token_rows].float().sum(dim=1)).to(BF16)


def outputs_of(tokens: int, columns: int, sets: int, fp8: bool) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Empty rows and their scales."""
    y = [torch.empty(tokens, columns, device="cuda", dtype=FP8 if fp8 else BF16) for _ in range(sets)]
    return y, [torch.empty(tokens, device="cuda") if fp8 else None for _ in range(sets)]


def as_values(y: torch.Tensor | tuple[torch.Tensor, torch.Tensor], scales: torch.Tensor | None = None) -> torch.Tensor:
    """Rows without their scales."""
    if isinstance(y, tuple):
        y, scales = y
    return y if scales is None else from_fp8(y, scales)


def gather_mul(library: Library, tokens: int, fp8: bool) -> Comparison:
    """Rows of all tokens in a random order, each with its weight: top-1."""
    element = 1 if fp8 else 2
    stream = Stream(library, reads=2 // element, writes=1, bytes_moved=float(tokens * HIDDEN * (2 + element)))
    x = [normal(tokens, HIDDEN) for _ in range(stream.sets)]
    row_token = [torch.randperm(tokens, device="cuda").int() for _ in range(stream.sets)]
    row_weight = torch.rand(tokens, device="cuda")
    num_rows = on_gpu([tokens])
    y, scales = outputs_of(tokens, HIDDEN, stream.sets, fp8)

    def ours(i: int) -> None:
        library.gather_mul(x[i], row_token[i], num_rows, row_weight, y[i], scales[i], tokens, tokens, HIDDEN)

    function = gather_scaled_fp8 if fp8 else gather_scaled
    peers: dict[str, Callable] = {"torch.compile": compiled(function)} | ({} if fp8 else {"torch": function})

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": as_values(y[0], scales[0])} | {
            name: as_values(peer(x[0], row_token[0], row_weight)) for name, peer in peers.items()
        }

    return Comparison(
        kernel="gather_mul", dtype="fp8" if fp8 else "bf16", shape={"tokens": tokens, "hidden": HIDDEN}, ours=ours,
        peers={name: lambda i, peer=peer: peer(x[i], row_token[i], row_weight) for name, peer in peers.items()} | stream.peer(),
        sets=stream.sets, bytes=stream.bytes, flops=tokens * HIDDEN, outputs=outputs, tolerance=3e-2 if fp8 else 1e-2,
    )  # fmt: skip


def silu_mul(library: Library, tokens: int, fp8: bool) -> Comparison:
    """silu(gate) up of as many rows as the device says: all."""
    element = 1 if fp8 else 2
    stream = Stream(library, reads=4 // element, writes=1, bytes_moved=float(tokens * FFN * (4 + element)))
    x = [normal(tokens, 2 * FFN) for _ in range(stream.sets)]
    num_rows = on_gpu([tokens])
    y, scales = outputs_of(tokens, FFN, stream.sets, fp8)

    def ours(i: int) -> None:
        library.silu_mul_rows(x[i], num_rows, y[i], scales[i], tokens, FFN)

    peer = compiled(swiglu_fp8 if fp8 else swiglu)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": as_values(y[0], scales[0]), "torch.compile": as_values(peer(x[0]))}

    return Comparison(
        kernel="silu_mul", dtype="fp8" if fp8 else "bf16", shape={"tokens": tokens, "ffn": FFN, "counted": 1}, ours=ours,
        peers={"torch.compile": lambda i: peer(x[i])} | stream.peer(), sets=stream.sets, bytes=stream.bytes,
        flops=5.0 * tokens * FFN, outputs=outputs, tolerance=3e-2 if fp8 else 1e-2,
    )  # fmt: skip


def scatter_add(library: Library, tokens: int, topk: int) -> Comparison:
    """out = base + the rows of each token, beside index_add_ into the base and a compiled gather."""
    rows = tokens * topk
    # Of reads to writes as 2 to 1: what a stream has for other mixes is close.
    stream = Stream(library, reads=2, writes=1, bytes_moved=2.0 * HIDDEN * (2 * tokens + rows))
    y = [normal(rows, HIDDEN) for _ in range(stream.sets)]
    base = [normal(tokens, HIDDEN) for _ in range(stream.sets)]
    out = [torch.empty_like(one) for one in base]
    # Row r holds choice order[r] = token * topk + choice.
    order = [torch.randperm(rows, device="cuda") for _ in range(stream.sets)]
    row_token = [(one // topk).int() for one in order]
    token_rows = [torch.argsort(one).int().reshape(tokens, topk) for one in order]

    def ours(i: int) -> None:
        library.scatter_add(y[i], token_rows[i], None, base[i], out[i], tokens, rows, topk, HIDDEN)

    peer = compiled(gather_sum)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": out[0], "torch": base[0].float().index_add_(0, row_token[0], y[0].float()),
                "torch.compile": peer(base[0], y[0], token_rows[0])}  # fmt: skip

    return Comparison(
        kernel="scatter_add", dtype="bf16", shape={"tokens": tokens, "hidden": HIDDEN, "topk": topk}, ours=ours,
        peers={"torch": lambda i: base[i].index_add_(0, row_token[i], y[i]),
               "torch.compile": lambda i: peer(base[i], y[i], token_rows[i])} | stream.peer(),
        sets=stream.sets, bytes=stream.bytes, flops=rows * HIDDEN, outputs=outputs,
    )  # fmt: skip


def shuffling(library: Library, kernel: str, rows: int) -> Comparison:
    """Rank-major rows to expert-major (combine) or back (split), beside index_select whose order is given."""
    stream = Stream(library, reads=1, writes=1, bytes_moved=4.0 * rows * HIDDEN)
    x = [normal(rows, HIDDEN) for _ in range(stream.sets)]
    out = [torch.empty_like(one) for one in x]
    counts = counts_of("ragged", RANKS * EXPERTS, rows)
    recv_counts = on_gpu(counts).reshape(RANKS, EXPERTS)
    group_counts, num_rows = on_gpu([0] * EXPERTS), on_gpu([0])
    blocks = torch.split(torch.arange(rows), counts)
    combined = torch.cat([blocks[rank * EXPERTS + expert] for expert in range(EXPERTS) for rank in range(RANKS)])
    order = (combined if kernel == "combine_shuffling" else torch.argsort(combined)).int().cuda()

    def ours(i: int) -> None:
        if kernel == "combine_shuffling":
            library.combine_shuffling(x[i], recv_counts, out[i], group_counts, num_rows, rows, HIDDEN, RANKS, EXPERTS)
        else:
            library.split_shuffling(x[i], recv_counts, out[i], rows, HIDDEN, RANKS, EXPERTS)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": out[0], "torch": x[0][order]}

    return Comparison(
        kernel=kernel, dtype="bf16", shape={"rows": rows, "hidden": HIDDEN, "ranks": RANKS, "experts": EXPERTS}, ours=ours,
        peers={"torch": lambda i: torch.index_select(x[i], 0, order, out=out[i])} | stream.peer(),
        sets=stream.sets, bytes=stream.bytes, flops=0.0, outputs=outputs, tolerance=0.0,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this file."""
    for tokens in TOKENS:
        for fp8 in (False, True):
            yield gather_mul(library, tokens, fp8)
            yield silu_mul(library, tokens, fp8)
        for topk in (1, 8):
            yield scatter_add(library, tokens, topk)
        for kernel in ("combine_shuffling", "split_shuffling"):
            yield shuffling(library, kernel, tokens)
