"""A whole layer of Llama-4 Scout over 8 GPUs as one graph: the router beside the shared expert on two streams, then the routed experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from elementwise import compiled
from harness import Comparison, Library
from moe_operands import BF16, normal, on_gpu
from moe_pipeline import FFN, HIDDEN, Buffers, Experts
from moe_rows import gather_sum, swiglu

EXPERTS = 16
TOKENS = (1, 64, 128, 256)
SETS = 2


class SharedExpert:
    """gate_up [2 FFN, HIDDEN] and down [HIDDEN, FFN] in bf16."""

    def __init__(self, tokens: int) -> None:
        self.gate_up_w, self.down_w = normal(2 * FFN, HIDDEN, scale=HIDDEN**-0.5), normal(HIDDEN, FFN, scale=FFN**-0.5)
        self.gate_up, self.act, self.out = (torch.empty(tokens, columns, device="cuda", dtype=BF16) for columns in (2 * FFN, FFN, HIDDEN))

    def ours(self, library: Library, x: torch.Tensor) -> None:
        """Into `out`."""
        tokens = x.shape[0]
        library.gemm(x, self.gate_up_w, self.gate_up, None, None, tokens, 2 * FFN, HIDDEN, 0, 0, 1)
        library.silu_mul(self.gate_up, self.act, None, tokens, FFN)
        library.gemm(self.act, self.down_w, self.out, None, None, tokens, HIDDEN, FFN, 0, 0, 1)


class Router:
    """w [EXPERTS, HIDDEN] and what routing writes; tokens are made so that each expert has as many."""

    def __init__(self, tokens: int) -> None:
        self.w = normal(EXPERTS, HIDDEN, scale=HIDDEN**-0.5)
        self.x = normal(tokens, HIDDEN) + 4 * self.w[torch.arange(tokens, device="cuda") % EXPERTS]
        self.scores = torch.empty(tokens, EXPERTS, device="cuda")
        self.counts, self.num_rows, self.row_token = on_gpu([0] * EXPERTS), on_gpu([0]), on_gpu([0] * tokens)
        self.row_weight, self.token_rows = torch.empty(tokens, device="cuda"), on_gpu([0] * tokens)

    def ours(self, library: Library) -> None:
        """Scores, then the order of rows."""
        tokens = self.x.shape[0]
        library.routing_scores(self.x, self.w, self.scores, tokens, HIDDEN, EXPERTS, 1)
        library.index_shuffling(self.scores, self.counts, self.num_rows, self.row_token, self.row_weight, self.token_rows, tokens, EXPERTS, 1)

    def peer(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ends [EXPERTS], tokens sorted by expert, and their weights."""
        scores, experts = torch.mm(self.x, self.w.T, out_dtype=torch.float32).max(dim=-1)
        ordered, order = torch.sort(experts, stable=True)
        ends = torch.searchsorted(ordered, torch.arange(EXPERTS, device="cuda"), right=True, out_int32=True)
        return ends, order, torch.sigmoid(scores)[order]


class Side:
    """A second stream, or with `streams` 1 the current one."""

    def __init__(self, streams: int) -> None:
        self._stream = torch.cuda.Stream() if streams == 2 else None

    def begin(self, work: Callable[[], None]) -> None:
        """`work` after what the current stream has so far, beside what it gets from now on."""
        if self._stream is None:
            work()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()

    def join(self) -> None:
        """What the current stream gets from now on waits for the work."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


def layer(library: Library, tokens: int, streams: int) -> Comparison:
    """Eight launches and a fork; PyTorch's kernels on as many streams."""
    routers = [Router(tokens) for _ in range(SETS)]
    shared = [SharedExpert(tokens) for _ in range(SETS)]
    weights = [Experts(library, "bf16", EXPERTS) for _ in range(SETS)]
    between = [Buffers(tokens, False) for _ in range(SETS)]
    out = [torch.empty(tokens, HIDDEN, device="cuda", dtype=BF16) for _ in range(SETS)]
    side = Side(streams)
    act, add = compiled(swiglu), compiled(gather_sum)
    active = min(EXPERTS, tokens)
    places = torch.arange(tokens, device="cuda")

    def ours(i: int) -> None:
        router, rows = routers[i], between[i]
        side.begin(lambda: shared[i].ours(library, router.x))
        router.ours(library)
        library.gather_mul(router.x, router.row_token, router.num_rows, router.row_weight, rows.xs, None, tokens, tokens, HIDDEN)
        weights[i].ours(rows.xs, None, False, router.counts, active, rows.gate_up)
        library.silu_mul_rows(rows.gate_up, router.num_rows, rows.act, None, tokens, FFN)
        weights[i].ours(rows.act, None, True, router.counts, active, rows.y)
        side.join()
        library.scatter_add(rows.y, router.token_rows, None, shared[i].out, out[i], tokens, tokens, 1, HIDDEN)

    def peer(i: int) -> torch.Tensor:
        router = routers[i]
        base: list[torch.Tensor] = []
        side.begin(lambda: base.append(torch.mm(act(torch.mm(router.x, shared[i].gate_up_w.T)), shared[i].down_w.T)))
        ends, order, weight = router.peer()
        token_rows = torch.empty_like(order).scatter_(0, order, places).reshape(tokens, 1)
        rows = (torch.index_select(router.x, 0, order).float() * weight[:, None]).to(BF16)
        y = weights[i].peer(act(weights[i].peer(rows, None, False, ends)), None, True, ends)
        side.join()
        return add(base[0], y, token_rows)

    def outputs() -> dict[str, torch.Tensor]:
        out[0].fill_(float("nan"))
        ours(0)
        return {"ours": out[0].clone(), "torch": peer(0)}

    matrices = EXPERTS * HIDDEN + 3 * FFN * HIDDEN * (1 + active)
    return Comparison(
        kernel="moe_layer", dtype="bf16",
        shape={"model": "Llama-4-Scout TP8", "tokens": tokens, "hidden": HIDDEN, "ffn": FFN, "experts": EXPERTS, "topk": 1, "streams": streams},
        ours=ours, peers={"torch": peer}, sets=SETS, bytes=2.0 * matrices, flops=2.0 * tokens * (EXPERTS * HIDDEN + 6 * FFN * HIDDEN),
        outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """One and two streams."""
    for tokens in TOKENS:
        for streams in (1, 2):
            yield layer(library, tokens, streams)
