"""Prefill attention beside cuDNN's and FlashAttention-2's as PyTorch calls them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from harness import Call, Comparison, Library, sets_for

NO_WINDOW = 1 << 30


@dataclass(kw_only=True)
class Batch:
    """New and cached tokens of each sequence, and the heads; q and k of `head_dim`, v of `v_dim` elements."""

    queries: list[int]
    contexts: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(self.queries)

    @property
    def keys(self) -> int:
        """Keys of all sequences."""
        return self.tokens + sum(self.contexts)

    def flops(self) -> float:
        """Of both GEMMs over the pairs that a causal mask leaves."""
        pairs = sum(q * c + q * (q + 1) / 2 for q, c in zip(self.queries, self.contexts, strict=True))
        return 2.0 * self.heads * (self.head_dim + self.v_dim) * pairs

    def bytes(self) -> float:
        """Each operand read once and the output written once."""
        return 2.0 * (self.tokens * self.heads + self.keys * self.kv_heads) * (self.head_dim + self.v_dim)

    def plan(self, library: Library) -> int:
        """Our tiles of this batch."""
        handle = torch.zeros(1, dtype=torch.int64)
        lengths = [torch.tensor(values, dtype=torch.int32) for values in (self.queries, self.contexts)]
        library.prefill_plan(*lengths, len(self.queries), self.head_dim, NO_WINDOW, handle)
        return int(handle[0])

    def offsets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First rows of the sequences among new tokens and among keys, and their ends."""
        totals = [q + c for q, c in zip(self.queries, self.contexts, strict=True)]
        ends = [torch.tensor([0, *values]).cumsum(0) for values in (self.queries, totals)]
        return ends[0].to("cuda", torch.int32), ends[1].to("cuda", torch.int32)


class Operands:
    """Random q, k and v of a batch in `sets` copies, one token after the other."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.sets = sets_for(batch.bytes())
        self.q = self._make(batch.tokens, batch.heads, batch.head_dim)
        self.k = self._make(batch.keys, batch.kv_heads, batch.head_dim)
        self.v = self._make(batch.keys, batch.kv_heads, batch.v_dim)
        self.out = torch.empty(batch.tokens, batch.heads, batch.v_dim, device="cuda", dtype=torch.bfloat16)
        self.lse = torch.empty(batch.tokens, batch.heads, device="cuda")

    def _make(self, *shape: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(self.sets)]

    def ours(self, library: Library) -> Call:
        """Our kernel over contiguous keys and values."""
        batch = self.batch
        plan = batch.plan(library)

        def call(i: int) -> None:
            operands = (plan, self.q[i], self.k[i], self.v[i], self.out, self.lse, batch.heads)
            if batch.head_dim == batch.v_dim:
                library.attention_prefill(*operands, batch.kv_heads, batch.head_dim)
            else:
                library.mla_prefill(*operands)

        return call

    def paged(self, library: Library, block_size: int) -> Call:
        """Our kernel over the same keys and values in scattered pages; whole pages of one sequence only."""
        batch = self.batch
        plan = batch.plan(library)
        blocks = batch.keys // block_size
        table = torch.randperm(blocks, device="cuda").to(torch.int32)
        shape = (blocks, block_size, batch.kv_heads, batch.head_dim)
        pages = [[torch.empty_like(x).view(shape) for x in data] for data in (self.k, self.v)]
        for data, copies in zip((self.k, self.v), pages, strict=True):
            for x, copy in zip(data, copies, strict=True):
                copy[table.long()] = x.view(shape)

        def call(i: int) -> None:
            library.attention_prefill_paged(
                plan, self.q[i], pages[0][i], pages[1][i], self.out, self.lse, table, blocks, block_size, blocks,
                batch.heads, batch.kv_heads, batch.head_dim)  # fmt: skip

        return call

    def cudnn(self) -> Callable[[int], torch.Tensor]:
        """cuDNN through scaled_dot_product_attention; sequences of equal length without context."""
        batch = self.batch
        count = len(batch.queries)

        def call(i: int) -> torch.Tensor:
            q, k, v = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (self.q[i], self.k[i], self.v[i]))
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=batch.heads != batch.kv_heads)

        return call

    def flash(self) -> Callable[[int], torch.Tensor]:
        """PyTorch's FlashAttention-2, the only one it has whose mask ends at the last key (chunks)."""
        batch = self.batch
        of_queries, of_keys = batch.offsets()
        longest_key = max(q + c for q, c in zip(batch.queries, batch.contexts, strict=True))

        def call(i: int) -> torch.Tensor:
            return torch.ops.aten._flash_attention_forward(
                self.q[i], self.k[i], self.v[i], of_queries, of_keys, max(batch.queries), longest_key, 0.0, True, False)[0]  # fmt: skip

        return call


def _outputs(operands: Operands, ours: Call, peers: dict[str, Call]) -> dict[str, torch.Tensor]:
    results = {}
    for name, call in {**peers, "ours": ours}.items():
        operands.out.fill_(math.nan)
        result = call(0)
        if result is None:
            result = operands.out
        elif result.dim() == 4:  # [batch, heads, tokens, v_dim]
            result = result.transpose(1, 2)
        results[name] = result.reshape(operands.out.shape).clone()
    return results


def _comparison(kernel: str, shape: dict[str, int], operands: Operands, ours: Call, peers: dict[str, Call]) -> Comparison:
    batch = operands.batch
    return Comparison(
        kernel=kernel, dtype="bf16", shape=shape, ours=ours, peers=peers, sets=operands.sets, bytes=batch.bytes(),
        flops=batch.flops(), outputs=partial(_outputs, operands, ours, peers))  # fmt: skip


def prompts(library: Library) -> Iterator[Comparison]:
    """Whole prompts of equal length."""
    for count, query, heads, kv_heads, head_dim in (
        (1, 2048, 32, 8, 128), (1, 4096, 32, 8, 128), (1, 8192, 32, 8, 128), (1, 16384, 32, 8, 128),
        (1, 32768, 32, 8, 128), (4, 4096, 64, 8, 128), (16, 512, 32, 8, 128), (1, 8192, 8, 1, 128),
        (1, 8192, 16, 16, 128), (1, 2048, 32, 8, 64), (1, 8192, 32, 8, 64), (1, 16384, 32, 8, 64),
    ):  # fmt: skip
        batch = Batch(queries=[query] * count, contexts=[0] * count, heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_dim=head_dim)
        operands = Operands(batch)
        shape = {"batch": count, "query": query, "context": 0, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        yield _comparison("attention_prefill", shape, operands, operands.ours(library), {"cudnn": operands.cudnn()})


def mixes(library: Library) -> Iterator[Comparison]:
    """Prompts of unequal length in one call; `query` is their mean. cuDNN's call for those cannot be captured in a graph."""
    for queries in ([8192, 4096, 2048, 1024, 512, 256, 128, 64], [1000 + 37 * i for i in range(16)]):
        batch = Batch(queries=queries, contexts=[0] * len(queries), heads=32, kv_heads=8, head_dim=128, v_dim=128)
        operands = Operands(batch)
        mean = batch.tokens // len(queries)
        shape = {"batch": len(queries), "query": mean, "longest": max(queries), "context": 0, "heads": 32, "kv_heads": 8, "head_dim": 128}
        yield _comparison("attention_prefill", shape, operands, operands.ours(library), {"flash-attention 2": operands.flash()})


def chunks(library: Library) -> Iterator[Comparison]:
    """New tokens on cached ones. cuDNN's mask, as PyTorch calls it, begins at the first key."""
    for count, query, context in ((1, 2048, 14336), (1, 512, 8192), (8, 512, 2000)):
        batch = Batch(queries=[query] * count, contexts=[context] * count, heads=32, kv_heads=8, head_dim=128, v_dim=128)
        operands = Operands(batch)
        shape = {"batch": count, "query": query, "context": context, "heads": 32, "kv_heads": 8, "head_dim": 128}
        yield _comparison("attention_prefill", shape, operands, operands.ours(library), {"flash-attention 2": operands.flash()})


def pages(library: Library) -> Iterator[Comparison]:
    """A paged cache beside our own kernel and cuDNN over contiguous keys and values."""
    batch = Batch(queries=[8192], contexts=[0], heads=32, kv_heads=8, head_dim=128, v_dim=128)
    for block_size in (16, 64, 128):
        operands = Operands(batch)
        shape = {"batch": 1, "query": 8192, "context": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": block_size}
        peers = {"ours, contiguous": operands.ours(library), "cudnn, contiguous": operands.cudnn()}
        yield _comparison("attention_prefill", shape, operands, operands.paged(library, block_size), peers)


def mla(library: Library) -> Iterator[Comparison]:
    """MLA's prefill: keys of 192, values of 128 elements."""
    for query, heads in ((2048, 32), (4096, 32), (8192, 16), (16384, 16), (4096, 128)):
        batch = Batch(queries=[query], contexts=[0], heads=heads, kv_heads=heads, head_dim=192, v_dim=128)
        operands = Operands(batch)
        shape = {"batch": 1, "query": query, "context": 0, "heads": heads, "qk_head_dim": 192, "v_head_dim": 128}
        yield _comparison("mla_prefill", shape, operands, operands.ours(library), {"cudnn": operands.cudnn()})


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this family."""
    for part in (prompts, mixes, chunks, pages, mla):
        yield from part(library)
