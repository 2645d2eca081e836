"""Kernels of a step matched to the ops of our plan for the same model and batch.

A step is cut at its attention: as many groups of attention kernels as the plan has layers, or the trace is of another model. Between two
groups the kernels are aligned with the ops that stand there, in order, at the least cost: a kernel goes to an op that has its kind (by name),
whose matrix it multiplies (by recorded shapes), or, if it is element-wise, to an op at whose place it stands (by order). Several kernels may
make up one op; an op without a kernel is fused into another. A kernel that no op there can be is left over, under its name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from .kinds import ELEMENTWISE, UNKNOWN, kind_of
from .steps import EngineStep, gemm_shape
from .trace import Kernel, TraceError, by_stream

# What the kernels of an op can be: of its own kind, and what else belongs to it at a small cost.
_OWN_KINDS = {
    "gemm": ("gemm",),
    "batched_gemm": ("gemm", "bmm"),
    "comm": ("comm",),
    "attention_prefill": ("attention",),
    "attention_decode": ("attention",),
    "attention_packed": ("attention",),
    "rms_norm": ("norm",),
    "add_rms_norm": ("norm",),
    "rope": ("rope",),
    "kv_append": ("kv_write",),
    "silu_mul": ("activation",),
    "quantize": ("quant",),
    "embedding": ("embedding",),
    "sample": ("sample",),
    "moe_route": ("topk", "softmax"),
    "moe": ("moe",),
    "residual_add": (),
}
_ALSO = {
    "attention_prefill": ("gather", "softmax", "pad", "bmm", ELEMENTWISE),
    "attention_decode": ("gather", "softmax", "pad", "bmm", ELEMENTWISE),
    "attention_packed": ("gather", "softmax", "pad", "bmm", ELEMENTWISE),
    "moe": ("gemm", "bmm", "activation", "gather", "topk", "quant", "kv_write", ELEMENTWISE),  # index_put_ writes experts' tokens too
    "moe_route": ("gather", ELEMENTWISE),
    "sample": ("softmax", "topk", "gather", ELEMENTWISE),
    "embedding": ("gather", "rope", "bmm", ELEMENTWISE),
    "gemm": ("quant",),
    "kv_append": ("quant",),
    "add_rms_norm": ("quant", "gather", ELEMENTWISE),
    "rms_norm": ("quant", "gather", ELEMENTWISE),
    "rope": ("gather", ELEMENTWISE),
    "silu_mul": ("quant", ELEMENTWISE),
    "residual_add": (ELEMENTWISE,),
}
_ATTENTION = ("attention_prefill", "attention_decode", "attention_packed")
# Which ops can hold one that has no kernel, the first that the step has; any other is held by the op before it.
_HOLDERS = {"kv_append": ("rope", *_ATTENTION), "rope": _ATTENTION, "rms_norm": ("rope", *_ATTENTION)}
_NEEDED = ("gemm", "moe", *_ATTENTION)  # an engine has a kernel for it
_BY_ORDER, _LEFT, _WRONG_SHAPE = 1.0, 40.0, 1e6
_MISSING, _FUSED = 500.0, 3.0


@dataclasses.dataclass(frozen=True)
class PlanOp:
    name: str
    kernel: str  # or the collective
    dtype: str
    dims: tuple[tuple[str, int], ...]
    copy: int

    def size(self, name: str) -> int:
        return dict(self.dims)[name]


@dataclasses.dataclass
class Matched:
    """One op of a step with its kernels. `by`: microseconds matched by name, by shapes, by order."""

    op: PlanOp
    time: float  # us: kernels and the pauses between them
    kernels: list[Kernel]
    by: dict[str, float]


@dataclasses.dataclass
class StepMatch:
    step: EngineStep
    ops: list[Matched]
    fused: list[tuple[PlanOp, PlanOp]]  # an op without kernels, and the one that holds it
    left: list[Kernel]  # of the model's part of the step, in no op
    outside: list[Kernel]  # before the first op and after the last: inputs, bookkeeping

    @property
    def total(self) -> float:
        return sum(each.time for each in self.ops) + sum(kernel.duration for kernel in self.left) + sum(k.duration for k in self.outside)


def match(step: EngineStep, ops: Sequence[PlanOp], longest_pause: float) -> StepMatch:
    """Raises TraceError where the kernels cannot be those of the plan; pauses up to `longest_pause` us belong to the op before."""
    kernels = _main_stream(step)
    kinds = [kind_of(kernel.name, kernel.op, is_copy=kernel.is_copy) for kernel in kernels]
    _mark_embedding(kernels, kinds, ops)
    compute = [op for op in ops if op.kernel in _OWN_KINDS or op.kernel == "comm"]
    if foreign := sorted({op.kernel for op in ops} - {op.kernel for op in compute}):
        raise TraceError(f"found ops of kind {', '.join(foreign)} in the plan, whose kernels are not known to this importer")
    groups = _attention_groups(kinds)
    layers = _layers(compute)
    if len(groups) != len(layers):
        raise TraceError(
            f"{step.trace.path}: found {len(groups)} times attention in a step of {len(kernels)} kernels; expected {len(layers)}, once for each "
            "layer of the model (a trace of another model, or attention under a name that is not known)"
        )
    first, last = _model_part(kernels, kinds, groups)
    found = StepMatch(step, [], [], [], [*kernels[:first], *kernels[last:]])
    cuts = [first, *(after for _, after in groups), last]
    bounds = [0, *(layer[-1] for layer in layers), len(compute)]  # the op of attention is the last of its part
    used: dict[int, list[int]] = {}
    for part, (begin, end) in enumerate(zip(cuts, cuts[1:])):
        start = bounds[part]
        if part > 0:  # what follows attention's own kernels may still be its own
            start = layers[part - 1][0]
        wanted = tuple(compute[start : bounds[part + 1] + 1])
        sizes = tuple(_columns(kernel) for kernel in kernels[begin:end])
        needs = tuple(_Wanted.of(op) for op in wanted)
        order = _products_together(tuple(kinds[begin:end]), sizes, needs)
        taken = _align(tuple(kinds[begin + each] for each in order), tuple(sizes[each] for each in order), needs, part == 0)
        for offset, place in zip(order, taken):
            used.setdefault(start + place if place >= 0 else -1, []).append(begin + offset)
    for places in used.values():
        places.sort()
    _check_needed(step, compute, used)
    _collect(found, compute, kernels, kinds, used, longest_pause)
    return found


def _columns(kernel: Kernel) -> _Shape:
    """(m, n, k) of a product; of a kernel that adds up the parts of one, n is 0, since its columns are counted already."""
    shape = gemm_shape(kernel)
    return (shape[0], 0, shape[2]) if shape is not None and "splitkreduce" in kernel.name.lower() else shape


def _mark_embedding(kernels: Sequence[Kernel], kinds: list[str], ops: Sequence[PlanOp]) -> None:
    """A kernel that picks rows of the vocabulary's table, whatever it is called: torch looks them up as it does any rows."""
    tables = {(op.size("vocab"), op.size("hidden")) for op in ops if op.kernel == "embedding"}
    for index, kernel in enumerate(kernels):
        if kernel.shapes and kernel.shapes[0] in tables and kinds[index] == "gather":
            kinds[index] = "embedding"


def _main_stream(step: EngineStep) -> list[Kernel]:
    """Kernels by start. Those of other streams run beside; they keep their place in time."""
    streams = list(by_stream(step.kernels))
    main = streams[0][0]
    return [kernel for kernel in step.kernels if kernel.stream == main or not kernel.is_copy]


def _attention_groups(kinds: Sequence[str]) -> list[tuple[int, int]]:
    """From the first attention kernel to after the last, of each run of them without a product between."""
    groups: list[tuple[int, int]] = []
    is_open = False
    for index, kind in enumerate(kinds):
        if kind == "attention":
            groups = [*groups[:-1], (groups[-1][0], index + 1)] if is_open else [*groups, (index, index + 1)]
            is_open = True
        elif kind in ("gemm", "moe"):
            is_open = False
    return groups


def _layers(ops: Sequence[PlanOp]) -> list[tuple[int, int]]:
    """Indices of the first and last attention op of each layer."""
    layers: list[tuple[int, int]] = []
    for index, op in enumerate(ops):
        if op.kernel in _ATTENTION:
            if layers and layers[-1][1] == index - 1:
                layers[-1] = (layers[-1][0], index)
            else:
                layers.append((index, index))
    return layers


def _model_part(kernels: Sequence[Kernel], kinds: Sequence[str], groups: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """From the embedding (else the first product's norm) to the last kernel of sampling."""
    before = [index for index in range(groups[0][0]) if kinds[index] == "embedding"]
    if before:
        first = before[-1]
    else:
        products = [index for index in range(groups[0][0]) if kinds[index] == "gemm"]
        norms = [index for index in range(products[0] if products else 0) if kinds[index] == "norm"]
        first = norms[0] if norms else products[0] if products else 0
    graph_end = max((index + 1 for index, kernel in enumerate(kernels) if kernel.is_graph), default=0)
    sampled = [index + 1 for index in range(groups[-1][1], len(kinds)) if kinds[index] in ("sample", "gemm")]
    return first, max(graph_end, sampled[-1] if sampled else len(kinds), groups[-1][1])


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """What alignment needs to know of an op."""

    kernel: str
    n: int
    k: int

    @staticmethod
    def of(op: PlanOp) -> _Wanted:
        sizes = dict(op.dims)
        return _Wanted(op.kernel, sizes.get("n", 0), sizes.get("k", 0))


_Shape = tuple[int, int, int] | None


@functools.lru_cache(maxsize=4096)
def _products_together(kinds: tuple[str, ...], shapes: tuple[_Shape, ...], ops: tuple[_Wanted, ...]) -> tuple[int, ...]:
    """The order of kernels in which the products that make up one op of the plan follow each other: what an engine does between them (the
    norm of q before the product of k, the activation before the other half) stands after the last."""
    order = list(range(len(kinds)))
    products = [index for index in order if kinds[index] == "gemm" and shapes[index] is not None]
    for op in ops:
        parts: list[int] = []
        total = 0
        for index in products:
            shape = shapes[index]
            if shape is None or shape[2] != op.k or total + shape[1] > op.n:
                break
            parts.append(index)
            total += shape[1]
        if op.kernel != "gemm" or total != op.n:
            continue
        products = products[len(parts) :]
        first, last = order.index(parts[0]), order.index(parts[-1])
        between = order[first : last + 1]
        order[first : last + 1] = [*parts, *(index for index in between if index not in parts)]
    return tuple(order)


@functools.lru_cache(maxsize=4096)
def _align(kinds: tuple[str, ...], shapes: tuple[_Shape, ...], ops: tuple[_Wanted, ...], is_first: bool) -> tuple[int, ...]:
    """For each kernel the op that it belongs to, ascending, or -1; dynamic programming over both in order.

    The first op of a part that is not the first is attention whose kernels stood before, so it needs none here. A product of recorded size
    goes to an op with its k, and n up to the op's, in parts that add up to it.
    """
    num_ops = len(ops)
    infinite = float("inf")
    # By op and columns taken of its n (-1: it has its kernels): the least cost so far and the choices that led there.
    states: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(-1, 0) if is_first else (0, -1): (0.0, ())}
    for kind, shape in zip(kinds, shapes):
        following: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}

        def offer(
            key: tuple[int, int], cost: float, choices: tuple[int, ...], into: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = following
        ) -> None:
            if cost < into.get(key, (infinite, ()))[0]:
                into[key] = (cost, choices)

        for (at, filled), (cost, choices) in states.items():
            offer((at, filled), cost + _LEFT, (*choices, -1))
            skipped = cost
            for op in range(max(at, 0), num_ops):
                if op > at:
                    skipped += _unfinished(ops[at], filled) if at >= 0 and op == at + 1 else 0.0
                    skipped += _without(ops[op - 1]) if op - 1 > at else 0.0
                    now = 0
                else:
                    now = filled
                price, then = _price(kind, shape, ops[op], now)
                if price < _WRONG_SHAPE:
                    offer((op, then), skipped + price, (*choices, op))
        states = following
    end = min(
        (cost + _unfinished(ops[at], filled) * (at >= 0) + sum(_without(op) for op in ops[at + 1 :]), choices)
        for (at, filled), (cost, choices) in states.items()
    )
    return end[1]


def _price(kind: str, shape: _Shape, op: _Wanted, filled: int) -> tuple[float, int]:
    """What it costs that a kernel belongs to an op of which `filled` columns are there (-1: the op has its kernels), and those after."""
    if kind == UNKNOWN:
        return _WRONG_SHAPE, filled
    if op.kernel == "gemm" and kind == "gemm":
        if shape is None:
            return (0.0 if filled <= 0 else 1.5), max(filled, 0) + 1
        if shape[2] != op.k or max(filled, 0) + shape[1] > op.n:
            return (0.1, filled) if filled == op.n and shape[1] == op.n and shape[2] == op.k else (_WRONG_SHAPE, filled)
        return 0.0, max(filled, 0) + shape[1]
    if kind in _OWN_KINDS.get(op.kernel, ()):
        return 0.0, -1
    if kind in _ALSO.get(op.kernel, ()) or (kind == "embedding" and "gather" in _ALSO.get(op.kernel, ())):  # of one name in torch
        return _BY_ORDER, filled
    return _WRONG_SHAPE, filled


def _without(op: _Wanted) -> float:
    return _MISSING if op.kernel in _NEEDED else _FUSED


def _unfinished(op: _Wanted, filled: int) -> float:
    """Of an op that is left for the next: nothing, where it has what it needs."""
    if op.kernel == "gemm" and filled > 8 and filled != op.n:
        return _MISSING
    return 0.0


def _check_needed(step: EngineStep, ops: Sequence[PlanOp], used: dict[int, list[int]]) -> None:
    missing = [op for index, op in enumerate(ops) if index not in used and op.kernel in ("gemm", "moe")]
    if missing:
        op = missing[0]
        sizes = ", ".join(f"{name} {size}" for name, size in op.dims)
        raise TraceError(
            f"{step.trace.path}: found no kernel for {len(missing)} of the plan's products ({op.name}: {op.kernel} of {sizes}); expected one "
            f"for each (a trace of another model, or of --tp other than it says)"
        )


def _collect(
    found: StepMatch, ops: Sequence[PlanOp], kernels: Sequence[Kernel], kinds: Sequence[str], used: dict[int, list[int]], longest_pause: float
) -> None:  # fmt: skip
    last: PlanOp | None = None
    present = {op.kernel: op for index, op in enumerate(ops) if index in used}
    for index, op in enumerate(ops):
        places = used.get(index)
        if not places:
            holder = next((present[name] for name in _HOLDERS.get(op.kernel, ()) if name in present), last)
            if holder is not None:
                found.fused.append((op, holder))
            continue
        last = op
        time, by = 0.0, {"name": 0.0, "shapes": 0.0, "order": 0.0}
        for place in places:
            kernel = kernels[place]
            spent = kernel.duration
            if place + 1 < len(kernels):
                pause = kernels[place + 1].start - kernel.end
                spent += pause if pause <= longest_pause else 0.0  # below 0: the next began before the end
            time += spent
            is_own = kinds[place] in _OWN_KINDS.get(op.kernel, ())
            by["shapes" if is_own and gemm_shape(kernel) else "name" if is_own else "order"] += kernel.duration
        found.ops.append(Matched(op, time, [kernels[place] for place in places], by))
    found.left.extend(kernels[place] for place in used.get(-1, []))
