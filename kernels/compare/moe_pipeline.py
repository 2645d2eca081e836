"""The routed part of a layer as one graph: gather, both grouped GEMMs, SwiGLU and the sum into the shared expert's output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from elementwise import compiled
from harness import BF16_FLOPS_PER_S, FP8_FLOPS_PER_S, Comparison, Library, sets_for
from moe_operands import BF16, ELEMENT_BYTES, FP8, counts_of, normal, on_gpu, row_scales
from moe_rows import gather_scaled, gather_scaled_fp8, gather_sum, swiglu, swiglu_fp8

HIDDEN, FFN = 5120, 1024  # Llama-4 over 8 GPUs, top-1
TOKENS = (128, 16384)
EXPERTS = (16, 128)


class Experts:
    """Weights of `experts` routed experts, and the two grouped GEMMs by ours and by PyTorch."""

    def __init__(self, library: Library, dtype: str, experts: int) -> None:
        self.library = library
        self.is_fp8 = dtype == "fp8"
        self.gate_up = normal(experts, 2 * FFN, HIDDEN, fp8=self.is_fp8, scale=1.0 if self.is_fp8 else HIDDEN**-0.5)
        self.down = normal(experts, HIDDEN, FFN, fp8=self.is_fp8, scale=1.0 if self.is_fp8 else FFN**-0.5)
        # e4m3 holds small values badly: the scales bring the products down.
        self.gate_up_scales = row_scales(experts, 2 * FFN) * HIDDEN**-0.5 if self.is_fp8 else None
        self.down_scales = row_scales(experts, HIDDEN) * FFN**-0.5 if self.is_fp8 else None

    def ours(self, x: torch.Tensor, scales: torch.Tensor | None, is_down: bool, counts: torch.Tensor, active: int, y: torch.Tensor) -> None:
        """y [rows, n] = x [rows, k] w^T, `active` experts expected to have rows.

        The kernel right before must not be the one that writes counts.
        """
        w, w_scales = (self.down, self.down_scales) if is_down else (self.gate_up, self.gate_up_scales)
        rows, (groups, n, k) = x.shape[0], w.shape
        self.library.grouped_gemm(x, w, counts, y, scales, w_scales, rows, n, k, groups, int(self.is_fp8), rows, active, 1)

    def peer(self, x: torch.Tensor, scales: torch.Tensor | None, is_down: bool, ends: torch.Tensor) -> torch.Tensor:
        """The same by torch._grouped_mm or torch._scaled_grouped_mm."""
        w, w_scales = (self.down, self.down_scales) if is_down else (self.gate_up, self.gate_up_scales)
        if self.is_fp8:
            return torch._scaled_grouped_mm(x, w.transpose(-2, -1), scales, w_scales, offs=ends, out_dtype=BF16, use_fast_accum=True)
        return torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)


class Buffers:
    """What lies between the kernels of a layer, for `rows` rows."""

    def __init__(self, rows: int, fp8: bool) -> None:
        def made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(*shape, device="cuda", dtype=dtype)

        form = FP8 if fp8 else BF16
        self.xs, self.act = made(rows, HIDDEN, dtype=form), made(rows, FFN, dtype=form)
        self.gate_up, self.y = made(rows, 2 * FFN, dtype=BF16), made(rows, HIDDEN, dtype=BF16)
        self.xs_scales = made(rows, dtype=torch.float32) if fp8 else None
        self.act_scales = made(rows, dtype=torch.float32) if fp8 else None


class Routing:
    """Where the rows of a layer go."""

    def __init__(self, tokens: int, experts: int, load: str) -> None:
        counts = counts_of(load, experts, tokens)
        self.active = sum(count > 0 for count in counts)
        self.counts, self.num_rows = on_gpu(counts), on_gpu([tokens])
        self.ends = torch.cumsum(self.counts, 0, dtype=torch.int32)
        order = torch.randperm(tokens, device="cuda")
        self.row_token, self.token_rows = order.int(), torch.argsort(order).int().reshape(tokens, 1)
        self.row_weight = torch.rand(tokens, device="cuda")


def layer_bytes(tokens: int, active: int, dtype: str) -> float:
    """The least that is read and written: weights of active experts, x, and the base read and written."""
    return active * 3.0 * FFN * HIDDEN * ELEMENT_BYTES[dtype] + 3.0 * tokens * HIDDEN * 2


def run_ours(library: Library, experts: Experts, x: torch.Tensor, base: torch.Tensor, out: torch.Tensor,
             routing: Routing, between: Buffers) -> None:  # fmt: skip
    """Five launches."""
    tokens = x.shape[0]
    library.gather_mul(x, routing.row_token, routing.num_rows, routing.row_weight, between.xs, between.xs_scales, tokens, tokens, HIDDEN)
    experts.ours(between.xs, between.xs_scales, False, routing.counts, routing.active, between.gate_up)
    library.silu_mul_rows(between.gate_up, routing.num_rows, between.act, between.act_scales, tokens, FFN)
    experts.ours(between.act, between.act_scales, True, routing.counts, routing.active, between.y)
    library.scatter_add(between.y, routing.token_rows, None, base, out, tokens, tokens, 1, HIDDEN)


def pipeline(library: Library, dtype: str, tokens: int, num_experts: int, load: str) -> Comparison:
    """Ours beside PyTorch's kernels in one graph each; element-wise steps compiled."""
    is_fp8 = dtype == "fp8"
    routing = Routing(tokens, num_experts, load)
    moved = layer_bytes(tokens, routing.active, dtype)
    sets = sets_for(moved)
    weights = [Experts(library, dtype, num_experts) for _ in range(sets)]
    x = [normal(tokens, HIDDEN) for _ in range(sets)]
    base = [normal(tokens, HIDDEN) for _ in range(sets)]
    out = [torch.empty_like(one) for one in base]
    between = [Buffers(tokens, is_fp8) for _ in range(sets)]
    gather, act = (compiled(gather_scaled_fp8), compiled(swiglu_fp8)) if is_fp8 else (compiled(gather_scaled), compiled(swiglu))
    add = compiled(gather_sum)

    def ours(i: int) -> None:
        run_ours(library, weights[i], x[i], base[i], out[i], routing, between[i])

    def peer(i: int) -> torch.Tensor:
        rows = gather(x[i], routing.row_token, routing.row_weight)
        rows, scales = rows if is_fp8 else (rows, None)
        hidden = act(weights[i].peer(rows, scales, False, routing.ends))
        hidden, scales = hidden if is_fp8 else (hidden, None)
        return add(base[i], weights[i].peer(hidden, scales, True, routing.ends), routing.token_rows)

    def outputs() -> dict[str, torch.Tensor]:
        out[0].fill_(float("nan"))
        ours(0)
        return {"ours": out[0].clone(), "torch": peer(0)}

    return Comparison(
        kernel="routed_pipeline", dtype="fp8 rowwise" if is_fp8 else "bf16",
        shape={"tokens": tokens, "hidden": HIDDEN, "ffn": FFN, "experts": num_experts, "load": load},
        ours=ours, peers={"torch": peer}, sets=sets, bytes=moved, flops=6.0 * tokens * HIDDEN * FFN,
        peak_flops_per_s=FP8_FLOPS_PER_S if is_fp8 else BF16_FLOPS_PER_S, outputs=outputs, tolerance=3e-2 if is_fp8 else 1e-2,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """Even and skewed loads."""
    for tokens in TOKENS:
        for num_experts in EXPERTS:
            for dtype in ("bf16", "fp8"):
                for load in ("balanced", "zipf"):
                    yield pipeline(library, dtype, tokens, num_experts, load)
