"""Whether predictions put plans in the order that was measured: by decode steps, by whole services, and by layers of experts."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import Row

MARGIN = 0.03
"""Plans whose measured figures differ by less have no order."""

_SERVICE = re.compile(r"serve_\w+?_(azure|closed)_(\d+)")

Agreement = tuple[int, int]
"""Pairs in the measured order, and all pairs."""

Pair = tuple[Any, Any, bool]
"""Two plans that differ, and whether they stand in the measured order."""


def steps(rows: Iterable[Row], *, per_gpu: bool) -> Agreement:
    """Of two plans of one model, by a decode step of equal shape. With `per_gpu` by step time x GPUs, the inverse of a GPU's throughput."""
    return _agreement(step_pairs(rows, per_gpu=per_gpu))


def step_pairs(rows: Iterable[Row], *, per_gpu: bool) -> Iterator[Pair]:
    """The pairs that `steps` counts."""
    groups: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        if row["metric"].startswith("step_time/decode"):
            groups[row["model"], row["metric"], row["mode"]].append(row)
    return _pairs(groups.values(), lambda row: row["gpus"] if per_gpu else 1)


def services(rows: Iterable[Row], metric: str, *, per_gpu: bool = False, same_load: bool = False) -> Agreement:
    """Of two services of one model that differ in plan, load or both, by `metric` ("tpot_mean", "output_tokens_per_s").

    A service's name ends with what it serves: serve_8b_tp2_azure_50, serve_8b_closed_32. Two are compared when that is the Azure trace of both, or
    a closed loop; with `same_load` when all of it is the same. With `per_gpu` the figure of each counts divided by its GPUs.
    """
    return _agreement(service_pairs(rows, metric, per_gpu=per_gpu, same_load=same_load))


def service_pairs(rows: Iterable[Row], metric: str, *, per_gpu: bool = False, same_load: bool = False) -> Iterator[Pair]:
    """The pairs that `services` counts."""
    groups: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
    for row in rows:
        if row["metric"] == metric and (found := _SERVICE.fullmatch(row["plan"])):
            groups[row["model"], found[1], found[2] if same_load else ""].append(row)
    return _pairs(groups.values(), lambda row: 1 / row["gpus"] if per_gpu else 1)


def layers(rows: Sequence[Mapping[str, float]]) -> Agreement:
    """Of two layers of experts of as many `tokens`, in other designs, by their time."""
    groups: dict[float, list[Mapping[str, float]]] = collections.defaultdict(list)
    for row in rows:
        groups[row["tokens"]].append(row)
    return _agreement(_pairs(groups.values(), lambda _: 1))


def _agreement(pairs: Iterable[Pair]) -> Agreement:
    found = [is_as_measured for _, _, is_as_measured in pairs]
    return sum(found), len(found)


def _pairs(groups: Iterable[Sequence[Any]], weight: Callable[[Any], float]) -> Iterator[Pair]:
    for a, b in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        factor = weight(a) / weight(b)
        measured = a["measured"] / b["measured"] * factor
        if 1 / (1 + MARGIN) <= measured <= 1 + MARGIN:
            continue
        yield a, b, (measured > 1) == (a["predicted"] / b["predicted"] * factor > 1)


__all__ = ["MARGIN", "Agreement", "Pair", "layers", "service_pairs", "services", "step_pairs", "steps"]
