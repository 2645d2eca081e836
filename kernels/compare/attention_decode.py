"""Attention of one token per sequence over a paged cache beside PyTorch's over a contiguous one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import Comparison, Library, sets_for

BLOCK_SIZE = 64
MAX_BYTES = 18e9  # of a cache, which is held twice: paged for ours, contiguous for the peers
KEY_SCALE, VALUE_SCALE = 0.5, 0.25  # of fp8; powers of two, so that bf16 holds what fp8 stands for

NAMED = [(1, 8192, 32, 8, 128), (64, 2048, 32, 8, 128), (128, 4096, 64, 8, 128), (64, 4096, 8, 1, 128),
         (64, 4096, 32, 32, 128), (64, 4096, 64, 8, 64)]  # fmt: skip
SWEEP = [(batch, context, 32, 8, 128) for context in (512, 2048, 8192, 32768, 131072) for batch in (1, 4, 16, 64, 256)]


class Operands:
    """One set: the same random queries, keys and values in the paged layout and in the peers'."""

    def __init__(self, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, fp8: bool) -> None:
        self.q = torch.randn(batch, heads, 1, head_dim, device="cuda", dtype=torch.bfloat16)
        pages = -(-context // BLOCK_SIZE)
        self.num_blocks = batch * pages
        order = torch.randperm(self.num_blocks, device="cuda")
        self.block_table = order.to(torch.int32).view(batch, pages)
        self.context_lens = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        self.paged: list[torch.Tensor] = []
        self.contiguous: list[torch.Tensor] = []
        for scale in (KEY_SCALE, VALUE_SCALE):
            rows = torch.empty(batch, context, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16).normal_()
            stored = rows.to(torch.float8_e4m3fn) if fp8 else rows
            paged = torch.zeros(self.num_blocks, BLOCK_SIZE, kv_heads, head_dim, device="cuda", dtype=stored.dtype)
            for sequence in range(batch):
                blocks = order[sequence * pages : (sequence + 1) * pages]
                padded = torch.zeros(pages * BLOCK_SIZE, kv_heads, head_dim, device="cuda", dtype=stored.dtype)
                padded[:context] = stored[sequence]
                paged.view(torch.uint8)[blocks] = padded.view(torch.uint8).view(pages, *paged.view(torch.uint8).shape[1:])
            self.paged.append(paged)
            meant = stored.to(torch.bfloat16) * scale if fp8 else rows
            self.contiguous.append(meant.transpose(1, 2).contiguous())
        self.out = torch.empty(batch, heads, head_dim, device="cuda", dtype=torch.bfloat16)


def decode(library: Library, point: tuple[int, int, int, int, int], operands: list[Operands], fp8: bool) -> Comparison:
    """One shape on its operand sets. With an fp8 cache the peers read the same values from a bf16 one."""
    batch, context, heads, kv_heads, head_dim = point
    element_bytes = 1 if fp8 else 2
    cache_elements = 2.0 * batch * context * kv_heads * head_dim
    workspace_bytes = torch.zeros(1, dtype=torch.int64)
    library.attention_decode_workspace(workspace_bytes, element_bytes, batch, heads, kv_heads, head_dim, context)
    workspace = torch.zeros(int(workspace_bytes), device="cuda", dtype=torch.uint8)
    scales = (KEY_SCALE, VALUE_SCALE) if fp8 else (1.0, 1.0)

    def ours(index: int) -> None:
        o = operands[index]
        library.attention_decode(
            o.out, None, o.q, *o.paged, o.block_table, o.context_lens, workspace, element_bytes, batch, heads, kv_heads,
            head_dim, context, BLOCK_SIZE, o.num_blocks, o.block_table.shape[1], *scales,
        )  # fmt: skip

    def peer(backend: SDPBackend, index: int) -> torch.Tensor:
        o = operands[index]
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(o.q, *o.contiguous, enable_gqa=True)

    def outputs() -> dict[str, torch.Tensor]:
        operands[0].out.fill_(float("nan"))
        ours(0)
        return {
            "ours": operands[0].out,
            "cudnn": peer(SDPBackend.CUDNN_ATTENTION, 0).squeeze(2),
            "flash": peer(SDPBackend.FLASH_ATTENTION, 0).squeeze(2),
        }

    suffix = "_bf16_cache" if fp8 else ""
    return Comparison(
        kernel="attention_decode", dtype="fp8" if fp8 else "bf16",
        shape={"batch": batch, "context": context, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim},
        ours=ours,
        peers={
            f"cudnn{suffix}": lambda i: peer(SDPBackend.CUDNN_ATTENTION, i),
            f"flash{suffix}": lambda i: peer(SDPBackend.FLASH_ATTENTION, i),
        },
        sets=len(operands), bytes=cache_elements * element_bytes + 4.0 * batch * heads * head_dim,
        flops=2 * heads / kv_heads * cache_elements, outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """The named shapes and the sweep over batch and context, both cache formats."""
    for fp8 in (False, True):
        for point in dict.fromkeys(NAMED + SWEEP):
            batch, context, _, kv_heads, head_dim = point
            cache_elements = 2.0 * batch * context * kv_heads * head_dim
            if 2 * cache_elements > MAX_BYTES:
                continue
            operands = [Operands(*point, fp8) for _ in range(sets_for(cache_elements * (1 if fp8 else 2)))]
            yield decode(library, point, operands, fp8)
            operands.clear()  # the comparison outlives its timing
            torch.cuda.empty_cache()
