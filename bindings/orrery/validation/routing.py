"""How evenly the tokens of a step chose experts: what the plan expected beside what `orrery-gpu execute` counted.

Rows of experts decide how long routed layers take: experts with rows are those whose weights are read, and one with many
rows has more tiles than the others. Both are known only to who runs the tokens; a plan expects them from the
scenario's `expert_load`, which the executor imposes on the router (kernels/execute/router_bias.h).
"""

from __future__ import annotations

import collections
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .typed_csv import shown, whole

MOST_EXPERTS = 1 << 16
MOST_APART = 0.05
"""Of the choices, or of the experts with rows: more is another load than the one that was predicted with."""
Layer = tuple[str, int]
"""Op that shuffles, copy of it."""
Rows = Mapping[Layer, Sequence[int]]
"""Rows of each expert of the model, over all ranks."""


def executed_rows(path: pathlib.Path, lines: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, dict[Layer, list[int]]]:
    """The lines of experts.csv (kernels/execute/executed_files.h), each with its number, by step.

    Raises ValueError for rows that are no numbers, or of more experts than any model has.
    """
    steps: dict[str, dict[Layer, list[int]]] = collections.defaultdict(dict)
    count = whole(0)
    for number, line in lines:
        first, words = line["first"], line["rows"].split()
        if first + len(words) > MOST_EXPERTS:
            raise ValueError(f"{path}:{number}: found {first + len(words)} experts, expected at most {MOST_EXPERTS}")
        try:
            rows = [count(word) for word in words or [""]]
        except ValueError as error:
            raise ValueError(f"{path}:{number}: column rows: found {shown(line['rows'])}, expected each {error}") from None
        layer = steps[line["name"]].setdefault((line["op"], line["copy"]), [])
        layer += [0] * (first + len(rows) - len(layer))
        for expert, amount in enumerate(rows, start=first):
            layer[expert] += amount
    return dict(steps)


def routing(
    ops: Sequence[Mapping[str, Any]], executed: Rows, shares: Sequence[float] = ()
) -> dict[str, float | None] | None:
    """Experts with rows, the mean over layers, and the most rows of one over the mean of all; None where nothing was counted.

    `ops` as _core.plan_ops gives them: the first op with a dim "active" says what was expected, on each of its ranks. `shares`
    of the experts are those of the deployment; none: all alike. "apart" is the part of the choices that fell on other
    experts than expected, less what does so by chance.
    """
    if not executed:
        return None
    experts = max(len(rows) for rows in executed.values())
    active = [sum(count > 0 for count in rows) for rows in executed.values()]
    busiest = [max(rows) * len(rows) / sum(rows) for rows in executed.values() if sum(rows) > 0]
    expected = _choices(ops, shares, experts)
    return {
        "experts": experts,
        "layers": len(executed),
        "predicted_active": _expected_active(ops, experts),
        "executed_active": sum(active) / len(active),
        "least_active": min(active),
        "busiest": sum(busiest) / len(busiest) if busiest else 0.0,
        "most_busy": max(busiest, default=0.0),
        "predicted_busiest": max(expected) * experts,
        "apart": _apart(executed.values(), expected),
    }


def is_another_load(found: Mapping[str, Any]) -> bool:
    """Whether tokens chose by another load than `found`, of routing(), was predicted with."""
    active = found["predicted_active"]
    return found["apart"] > MOST_APART or (active is not None and abs(found["executed_active"] - active) > max(1, MOST_APART * found["experts"]))


def choice_probabilities(shares: Sequence[float], topk: int) -> list[float]:
    """That a token chooses each expert, as choice_probabilities of sim/model/expert_load.h has it: their sum is topk."""
    if topk == 1:
        return list(shares)

    def chosen(draws: float) -> list[float]:
        return [1 - (1 - share) ** draws for share in shares]

    low, high = float(topk), 2.0 * topk
    while sum(chosen(high)) < topk and high < 1e12:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(chosen(middle)) < topk else (low, middle)
    return chosen(high)


def _choices(ops: Sequence[Mapping[str, Any]], shares: Sequence[float], experts: int) -> list[float]:
    """The part of all choices that is expected to fall on each expert."""
    topk = next((op["body"]["dims"]["topk"] for op in ops if "topk" in op["body"].get("dims", {})), 1)
    if len(shares) != experts:
        return [1 / experts] * experts
    chosen = choice_probabilities(shares, topk)
    return [probability / sum(chosen) for probability in chosen]


def _apart(layers: Iterable[Sequence[int]], expected: Sequence[float]) -> float:
    """Over all layers, whose experts are loaded alike. By chance a count of n p differs by sqrt(2 n p (1 - p) / pi)."""
    counts = [0] * len(expected)
    for rows in layers:
        counts = [count + more for count, more in zip(counts, [*rows, *[0] * (len(counts) - len(rows))], strict=True)]
    total = sum(counts)
    if total == 0:
        return 0.0
    found = sum(abs(count / total - part) for count, part in zip(counts, expected, strict=True)) / 2
    chance = sum(math.sqrt(2 * part * (1 - part) / (math.pi * total)) for part in expected) / 2
    return max(0.0, found - chance)


def _expected_active(ops: Sequence[Mapping[str, Any]], experts: int) -> float | None:
    """Over the ranks of one layer: those that share an expert's columns, or route apart, count it once."""
    by_layer: dict[Layer, list[tuple[int, int]]] = collections.defaultdict(list)
    for op in ops:
        dims = op["body"].get("dims", {})
        if "active" in dims and "groups" in dims:
            by_layer[op["op"], op["copy"]] += [(dims["active"], dims["groups"])] * len(op["ranks"])
    for counts in by_layer.values():
        held = sum(groups for _, groups in counts)
        return sum(active for active, _ in counts) * experts / held
    return None


__all__ = ["MOST_APART", "Layer", "Rows", "choice_probabilities", "executed_rows", "is_another_load", "routing"]
