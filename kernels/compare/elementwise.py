"""Element-wise kernels beside PyTorch's and a plain stream of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import sampling
from harness import Call, Comparison, Library
from streams import Stream

DECODE_AND_PREFILL = (1, 64, 4096, 16384)
FP8_MAX = 448.0


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    """`function` through torch.compile at its best for these kernels, one compilation per shape."""
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def normal(*shape: int) -> torch.Tensor:
    """Random bf16 on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def to_fp8(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """y in fp32 by rows to e4m3 and scales [rows]."""
    scales = y.abs().amax(dim=-1).clamp(min=1e-30) / FP8_MAX
    return (y / scales[:, None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales


def from_fp8(y: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Values of rows, or of blocks of a row, and their scales."""
    groups = y.float().reshape(y.shape[0], scales.numel() // y.shape[0], -1)
    return (groups * scales.reshape(y.shape[0], -1, 1)).reshape(y.shape)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * weight.float()


@compiled
def _torch_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _norm(x, weight).to(torch.bfloat16)


@compiled
def _torch_norm_fp8(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return to_fp8(_norm(x, weight))


@compiled
def _torch_add_norm(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    residual.add_(x)
    return _norm(residual, weight).to(torch.bfloat16)


@compiled
def _torch_add_norm_fp8(
    residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    residual.add_(x)
    return to_fp8(_norm(residual, weight))


@compiled
def _torch_silu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(torch.bfloat16)


@compiled
def _torch_silu_mul_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.float().chunk(2, dim=-1)
    return to_fp8(F.silu(gate) * up)


@compiled
def _torch_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return to_fp8(x.float())


@compiled
def _torch_quantize_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, scales = to_fp8(x.float().reshape(-1, 128))
    return y.reshape(x.shape), scales.reshape(x.shape[0], -1)


@compiled
def _torch_rope(
    queries: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> None:
    cosine, sine = cosines[positions][:, None], sines[positions][:, None]
    for x in (queries, keys):
        low, high = x.float().chunk(2, dim=-1)
        x.copy_(torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1))


def _dequantised(result: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return from_fp8(*result) if isinstance(result, tuple) else result


def residual_add(library: Library) -> Iterator[Comparison]:
    """residual += x against torch.add in place."""
    hidden = 8192
    for tokens in DECODE_AND_PREFILL:
        stream = Stream(library, reads=2, writes=1, bytes_moved=3.0 * tokens * hidden * 2)
        residual = [normal(tokens, hidden) for _ in range(stream.sets)]
        x = [normal(tokens, hidden) for _ in range(stream.sets)]

        def outputs() -> dict[str, torch.Tensor]:
            peer = residual[0] + x[0]
            ours = residual[0].clone()
            library.residual_add(ours, x[0], tokens, hidden)
            return {"ours": ours, "torch": peer}

        yield Comparison(
            kernel="residual_add", dtype="bf16", shape={"tokens": tokens, "hidden": hidden},
            ours=lambda i: library.residual_add(residual[i], x[i], tokens, hidden),
            peers={"torch": lambda i: residual[i].add_(x[i])} | stream.peer(),
            sets=stream.sets, bytes=stream.bytes, flops=tokens * hidden, outputs=outputs,
        )  # fmt: skip


def _activations(
    library: Library, kernel: str, peers: dict[str, Callable[..., object]], *, is_fp8: bool, columns: int,
    operands: Callable[[int], list[torch.Tensor]], mix: tuple[int, int], bytes_per_element: float, flops: float,
    axis: str = "hidden",
) -> Iterator[Comparison]:  # fmt: skip
    """Kernels that write y [tokens, columns] in bf16, or fp8 with a scale per token, from `operands(tokens)`."""
    for tokens in DECODE_AND_PREFILL:
        stream = Stream(library, reads=mix[0], writes=mix[1], bytes_moved=bytes_per_element * tokens * columns)
        sets = [operands(tokens) for _ in range(stream.sets)]
        form = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        y = [torch.empty(tokens, columns, device="cuda", dtype=form) for _ in range(stream.sets)]
        scales = [torch.empty(tokens, device="cuda") if is_fp8 else None for _ in range(stream.sets)]

        def ours(i: int) -> None:
            getattr(library, kernel)(*sets[i], y[i], scales[i], tokens, columns)

        def outputs() -> dict[str, torch.Tensor]:
            made = [operand.clone() for operand in sets[0]]
            results = {}
            for name, peer in peers.items():
                for operand, value in zip(sets[0], made):
                    operand.copy_(value)
                results[name] = _dequantised(peer(*sets[0]))
            for operand, value in zip(sets[0], made):
                operand.copy_(value)
            ours(0)
            return {"ours": from_fp8(y[0], scales[0]) if is_fp8 else y[0], **results}

        def calls(peer: Callable[..., object]) -> Call:
            return lambda i: peer(*sets[i])

        yield Comparison(
            kernel=kernel, dtype="fp8" if is_fp8 else "bf16", shape={"tokens": tokens, axis: columns},
            ours=ours, peers={name: calls(peer) for name, peer in peers.items()} | stream.peer(),
            sets=stream.sets, bytes=stream.bytes, flops=flops * tokens * columns, outputs=outputs,
            tolerance=3e-2 if is_fp8 else 1e-2,
        )  # fmt: skip


def norms(library: Library) -> Iterator[Comparison]:
    """rms_norm and add_rms_norm against F.rms_norm and torch.compile."""
    hidden = 8192

    def plain(tokens: int) -> list[torch.Tensor]:
        return [normal(tokens, hidden), normal(hidden)]

    def with_residual(tokens: int) -> list[torch.Tensor]:
        return [normal(tokens, hidden), normal(tokens, hidden), normal(hidden)]

    def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (hidden,), weight, 1e-5)

    yield from _activations(library, "rms_norm", {"torch": eager, "torch.compile": _torch_norm}, is_fp8=False,
                            columns=hidden, operands=plain, mix=(1, 1), bytes_per_element=4, flops=4)  # fmt: skip
    yield from _activations(library, "rms_norm", {"torch.compile": _torch_norm_fp8}, is_fp8=True,
                            columns=hidden, operands=plain, mix=(2, 1), bytes_per_element=3, flops=4)  # fmt: skip
    yield from _activations(library, "add_rms_norm", {"torch.compile": _torch_add_norm}, is_fp8=False,
                            columns=hidden, operands=with_residual, mix=(1, 1), bytes_per_element=8, flops=5)  # fmt: skip
    yield from _activations(library, "add_rms_norm", {"torch.compile": _torch_add_norm_fp8}, is_fp8=True,
                            columns=hidden, operands=with_residual, mix=(4, 3), bytes_per_element=7, flops=5)  # fmt: skip


def silu_mul(library: Library) -> Iterator[Comparison]:
    """silu_mul against torch.compile."""
    ffn = 14336

    def operands(tokens: int) -> list[torch.Tensor]:
        return [normal(tokens, 2 * ffn)]

    yield from _activations(library, "silu_mul", {"torch.compile": _torch_silu_mul}, is_fp8=False, columns=ffn,
                            operands=operands, mix=(2, 1), bytes_per_element=6, flops=5, axis="ffn")  # fmt: skip
    yield from _activations(library, "silu_mul", {"torch.compile": _torch_silu_mul_fp8}, is_fp8=True, columns=ffn,
                            operands=operands, mix=(4, 1), bytes_per_element=5, flops=5, axis="ffn")  # fmt: skip


def quantize(library: Library) -> Iterator[Comparison]:
    """Rowwise and block quantisation against torch.compile."""
    hidden = 8192
    for group, peer in ((hidden, _torch_quantize), (128, _torch_quantize_blocks)):
        for tokens in DECODE_AND_PREFILL:
            stream = Stream(library, reads=2, writes=1, bytes_moved=3.0 * tokens * hidden)
            x = [normal(tokens, hidden) for _ in range(stream.sets)]
            y = [torch.empty(tokens, hidden, device="cuda", dtype=torch.float8_e4m3fn) for _ in range(stream.sets)]
            scales = torch.empty(tokens, hidden // group, device="cuda")

            def ours(i: int) -> None:
                library.quantize(x[i], y[i], scales, tokens, hidden, group)

            def outputs() -> dict[str, torch.Tensor]:
                ours(0)
                return {"ours": from_fp8(y[0], scales), "torch.compile": from_fp8(*peer(x[0]))}

            yield Comparison(
                kernel="quantize", dtype="fp8" if group == hidden else "fp8_block",
                shape={"tokens": tokens, "hidden": hidden}, ours=ours,
                peers={"torch.compile": lambda i: peer(x[i])} | stream.peer(), sets=stream.sets, bytes=stream.bytes,
                flops=2.0 * tokens * hidden, outputs=outputs, tolerance=3e-2,
            )  # fmt: skip


def rope(library: Library) -> Iterator[Comparison]:
    """Rotary embedding of 32 query and 8 key heads against torch.compile."""
    query_heads, key_heads, head_dim, num_positions = 32, 8, 128, 8192
    angles = torch.outer(torch.arange(num_positions), 5e5 ** (-torch.arange(0, head_dim, 2) / head_dim)).cuda()
    cosines, sines = angles.cos(), angles.sin()
    for tokens in DECODE_AND_PREFILL:
        moved = 4.0 * tokens * (query_heads + key_heads) * head_dim
        stream = Stream(library, reads=1, writes=1, bytes_moved=moved)
        queries = [normal(tokens, query_heads, head_dim) for _ in range(stream.sets)]
        keys = [normal(tokens, key_heads, head_dim) for _ in range(stream.sets)]
        positions = torch.randint(num_positions, (tokens,), device="cuda", dtype=torch.int32)

        def turn(q: torch.Tensor, k: torch.Tensor) -> None:
            library.rope(q, k, positions, cosines, sines, tokens, query_heads, key_heads, head_dim, 0)

        def outputs() -> dict[str, torch.Tensor]:
            results = {}
            for name, call in (("ours", turn), ("torch.compile", peer)):
                q, k = queries[0].clone(), keys[0].clone()
                call(q, k)
                results[name] = torch.cat((q, k), dim=1)
            return results

        def peer(q: torch.Tensor, k: torch.Tensor) -> None:
            _torch_rope(q, k, positions, cosines, sines)

        yield Comparison(
            kernel="rope", dtype="bf16",
            shape={"tokens": tokens, "heads": query_heads + key_heads, "head_dim": head_dim},
            ours=lambda i: turn(queries[i], keys[i]),
            peers={"torch.compile": lambda i: peer(queries[i], keys[i])} | stream.peer(),
            sets=stream.sets, bytes=moved, flops=3.0 * tokens * (query_heads + key_heads) * head_dim, outputs=outputs,
        )  # fmt: skip


def kv_append(library: Library) -> Iterator[Comparison]:
    """Keys and values of 8 heads of 128 into scattered slots, against index_copy_."""
    width = 1024
    for tokens in DECODE_AND_PREFILL:
        moved = 2.0 * 2 * 2 * tokens * width
        stream = Stream(library, reads=1, writes=1, bytes_moved=moved)
        rows = [(normal(tokens, width), normal(tokens, width)) for _ in range(stream.sets)]
        caches = [(normal(2 * tokens, width), normal(2 * tokens, width)) for _ in range(stream.sets)]
        slots = torch.randperm(2 * tokens, device="cuda")[:tokens].contiguous()

        def ours(i: int) -> None:
            library.kv_append(*rows[i], slots, *caches[i], tokens, width, 0, 1.0, 1.0)

        def peer(i: int) -> None:
            for row, cache in zip(rows[i], caches[i]):
                cache.index_copy_(0, slots, row)

        def outputs() -> dict[str, torch.Tensor]:
            results = {}
            for name, call in (("ours", ours), ("torch", peer)):
                for cache in caches[0]:
                    cache.zero_()
                call(0)
                results[name] = torch.cat(caches[0])
            return results

        yield Comparison(
            kernel="kv_append", dtype="bf16", shape={"tokens": tokens, "width": 2 * width}, ours=ours,
            peers={"torch": peer} | stream.peer(), sets=stream.sets, bytes=moved, flops=0.0, outputs=outputs,
            tolerance=0.0,
        )  # fmt: skip


def embedding(library: Library) -> Iterator[Comparison]:
    """Rows of a table of 128,256 against index_select."""
    hidden, vocab = 8192, 128256
    table = normal(vocab, hidden)
    for tokens in DECODE_AND_PREFILL:
        stream = Stream(library, reads=1, writes=1, bytes_moved=4.0 * tokens * hidden)
        ids = [torch.randperm(vocab, device="cuda")[:tokens].int().contiguous() for _ in range(stream.sets)]
        y = [torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(stream.sets)]

        def outputs() -> dict[str, torch.Tensor]:
            library.embedding(ids[0], table, y[0], tokens, hidden, vocab)
            return {"ours": y[0], "torch": table[ids[0]]}

        yield Comparison(
            kernel="embedding", dtype="bf16", shape={"tokens": tokens, "hidden": hidden, "vocab": vocab},
            ours=lambda i: library.embedding(ids[i], table, y[i], tokens, hidden, vocab),
            peers={"torch": lambda i: torch.index_select(table, 0, ids[i], out=y[i])} | stream.peer(),
            sets=stream.sets, bytes=stream.bytes, flops=0.0, outputs=outputs, tolerance=0.0,
        )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this family."""
    for kernel in (residual_add, norms, silu_mul, quantize, rope, kv_append, embedding, sampling.comparisons):
        yield from kernel(library)
