"""Absorbed MLA decode beside what PyTorch can express of it.

PyTorch has no kernel for a head dim of 576, so its best are two batched GEMMs with a softmax between, eager and
compiled, and its scaled_dot_product_attention with the heads as query tokens. The peers read a contiguous cache of equal
lengths; ours reads the same values through a block table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from harness import Comparison, Library, sets_for

LATENT = 512
KEY = 576
BLOCK = 64
SCALE = 1 / math.sqrt(192)
SHAPES = ((128, 4096, 16), (128, 4096, 32), (128, 4096, 64), (128, 4096, 128), (32, 8192, 16), (32, 8192, 128),
          (1, 4096, 128), (1, 32768, 128), (256, 1024, 16), (256, 1024, 128))  # fmt: skip


def two_gemms(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """q [batch, heads, 576] and cache [batch, context, 576] to [batch, heads, 512]."""
    weights = torch.softmax(torch.bmm(q, cache.transpose(1, 2)) * SCALE, dim=-1)
    return torch.bmm(weights, cache[:, :, :LATENT])


def attention(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """The same through scaled_dot_product_attention."""
    out = F.scaled_dot_product_attention(q[:, None], cache[:, None], cache[:, None, :, :LATENT], scale=SCALE)
    return out[:, 0]


def mla_decode(library: Library, batch: int, context: int, heads: int) -> Comparison:
    """One shape, all sequences of the same length."""
    bytes_moved = 2.0 * (batch * context * KEY + batch * heads * (KEY + LATENT))
    sets = sets_for(bytes_moved)
    blocks = context // BLOCK
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q = [torch.randn(batch, heads, KEY, **options) for _ in range(sets)]
    cache = [torch.randn(batch, context, KEY, **options) for _ in range(sets)]
    table = torch.randperm(batch * blocks, device="cuda", dtype=torch.int32).reshape(batch, blocks)
    paged = [torch.empty_like(dense).reshape(-1, BLOCK, KEY) for dense in cache]
    for pages, dense in zip(paged, cache, strict=True):
        pages[table.flatten().long()] = dense.reshape(-1, BLOCK, KEY)
    lengths = torch.full((batch,), context, device="cuda", dtype=torch.int32)
    out = torch.empty(batch, heads, LATENT, **options)
    size = torch.zeros(1, dtype=torch.int64)
    library.mla_decode_workspace_bytes(batch, heads, size)
    workspace = torch.empty(int(size), device="cuda", dtype=torch.uint8)
    compiled = torch.compile(two_gemms, dynamic=False)

    def ours(i: int) -> None:
        library.mla_decode(q[i], paged[i], table, lengths, batch, heads, blocks, batch * blocks, SCALE, out, None, workspace)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": out.clone(), "bmm": two_gemms(q[0], cache[0]), "compiled bmm": compiled(q[0], cache[0]),
                "sdpa": attention(q[0], cache[0])}  # fmt: skip

    return Comparison(
        kernel="mla_decode", dtype="bf16", shape={"batch": batch, "context": context, "heads": heads}, ours=ours,
        peers={"bmm": lambda i: two_gemms(q[i], cache[i]), "compiled bmm": lambda i: compiled(q[i], cache[i]),
               "sdpa": lambda i: attention(q[i], cache[i])},
        sets=sets, bytes=bytes_moved, flops=2.0 * batch * heads * context * (KEY + LATENT), outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this family."""
    for batch, context, heads in SHAPES:
        yield mla_decode(library, batch, context, heads)
