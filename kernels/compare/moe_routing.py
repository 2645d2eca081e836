"""Routing beside PyTorch: scores of all experts, and the order of tokens sorted by their expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from harness import Comparison, Library, sets_for
from moe_operands import normal

TOKENS = (1, 16, 128, 512, 2048, 4096, 8192, 16384)
COMPILED_TOKENS = (128, 4096, 16384)  # a compilation each
# (experts, topk): Llama-4 Scout and Maverick, Mixtral, DeepSeek-V2-Lite, Qwen3.
ROUTERS = ((16, 1), (128, 1), (8, 2), (64, 6), (128, 8))
HIDDEN = 5120

Shuffled = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def shuffle(scores: torch.Tensor, topk: int) -> Shuffled:
    """counts [experts], tokens sorted by expert and their weights, from scores [tokens, experts]."""
    if topk == 1:
        weights, experts = scores.max(dim=-1, keepdim=True)
    else:
        weights, experts = torch.topk(scores, topk, dim=-1)
    flat = experts.reshape(-1)
    order = torch.argsort(flat, stable=True)
    # bincount waits for the host, which a captured graph may not.
    counts = torch.zeros(scores.shape[1], device=scores.device, dtype=torch.int64).scatter_add_(0, flat, torch.ones_like(flat))
    return counts, order // topk, weights.reshape(-1)[order]


def index_shuffling(library: Library, tokens: int, experts: int, topk: int) -> Comparison:
    """Top-k, counting and sorting in one."""
    rows = tokens * topk
    moved = 4.0 * (tokens * experts + 3 * rows + experts + 1)
    sets = sets_for(moved)
    scores = [torch.softmax(torch.randn(tokens, experts, device="cuda"), dim=-1) for _ in range(sets)]

    def made(*shape: int, dtype: torch.dtype = torch.int32) -> list[torch.Tensor]:
        return [torch.empty(*shape, device="cuda", dtype=dtype) for _ in range(sets)]

    counts, num_rows, row_token, token_rows = made(experts), made(1), made(rows), made(tokens, topk)
    row_weight = made(rows, dtype=torch.float32)

    def ours(i: int) -> None:
        library.index_shuffling(scores[i], counts[i], num_rows[i], row_token[i], row_weight[i], token_rows[i], tokens, experts, topk)

    peers: dict[str, Callable[[torch.Tensor, int], Shuffled]] = {"torch": shuffle}
    if tokens in COMPILED_TOKENS and (experts, topk) in ROUTERS[:2]:
        peers["torch.compile"] = torch.compile(shuffle, dynamic=False)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        found = {"ours": torch.cat((counts[0].double(), row_token[0].double(), row_weight[0].double()))}
        return found | {name: torch.cat([one.double() for one in call(scores[0], topk)]) for name, call in peers.items()}

    return Comparison(
        kernel="index_shuffling", dtype="fp32", shape={"tokens": tokens, "experts": experts, "topk": topk}, ours=ours,
        peers={name: lambda i, call=call: call(scores[i], topk) for name, call in peers.items()},
        sets=sets, bytes=moved, flops=tokens * experts, outputs=outputs, tolerance=0.0,
    )  # fmt: skip


def routing_scores(library: Library, tokens: int, experts: int, hidden: int, sigmoid: bool) -> Comparison:
    """Scores in fp32 of x [tokens, hidden] and w [experts, hidden]."""
    moved = 2.0 * hidden * (tokens + experts) + 4.0 * tokens * experts
    sets = sets_for(moved)
    x = [normal(tokens, hidden) for _ in range(sets)]
    w = [normal(experts, hidden, scale=hidden**-0.5) for _ in range(sets)]
    scores = [torch.empty(tokens, experts, device="cuda") for _ in range(sets)]

    def ours(i: int) -> None:
        library.routing_scores(x[i], w[i], scores[i], tokens, hidden, experts, int(sigmoid))

    def peer(i: int) -> torch.Tensor:
        logits = torch.mm(x[i], w[i].T, out_dtype=torch.float32)
        return torch.sigmoid_(logits) if sigmoid else torch.softmax(logits, dim=-1)

    def outputs() -> dict[str, torch.Tensor]:
        ours(0)
        return {"ours": scores[0], "torch": peer(0)}

    return Comparison(
        kernel="routing_scores", dtype="bf16",
        shape={"tokens": tokens, "hidden": hidden, "experts": experts, "score": "sigmoid" if sigmoid else "softmax"},
        ours=ours, peers={"torch": peer}, sets=sets, bytes=moved, flops=2.0 * tokens * hidden * experts, outputs=outputs,
    )  # fmt: skip


def comparisons(library: Library) -> Iterator[Comparison]:
    """All of this file."""
    for experts, topk in ROUTERS:
        for tokens in TOKENS:
            yield index_shuffling(library, tokens, experts, topk)
    for experts, hidden, sigmoid in ((16, HIDDEN, True), (128, HIDDEN, True), (128, 2048, False), (64, 2048, False), (8, 4096, False)):
        for tokens in (1, 64, 128, 4096, 16384):
            yield routing_scores(library, tokens, experts, hidden, sigmoid)
