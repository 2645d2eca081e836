"""How evenly the tokens of a step chose experts: what the plan expected beside what `orrery-gpu execute` counted.

Rows of experts decide how long routed layers take: experts with rows are those whose weights are read, and one with many
rows has more tiles than the others. Both are known only to who runs the tokens; a plan expects them from the
scenario's `expert_load`.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .typed_csv import shown, whole

MOST_EXPERTS = 1 << 16
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


def routing(ops: Sequence[Mapping[str, Any]], executed: Rows) -> dict[str, float] | None:
    """Experts with rows, the mean over layers, and the most rows of one over the mean of all; None where nothing was counted.

    `ops` as _core.plan_ops gives them: the first op with a dim "active" says what was expected, on each of its ranks.
    """
    if not executed:
        return None
    experts = max(len(rows) for rows in executed.values())
    active = [sum(count > 0 for count in rows) for rows in executed.values()]
    busiest = [max(rows) * len(rows) / sum(rows) for rows in executed.values() if sum(rows) > 0]
    return {
        "experts": experts,
        "layers": len(executed),
        "predicted_active": _expected_active(ops, experts),
        "executed_active": sum(active) / len(active),
        "least_active": min(active),
        "busiest": sum(busiest) / len(busiest) if busiest else 0.0,
        "most_busy": max(busiest, default=0.0),
    }


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


__all__ = ["Layer", "Rows", "executed_rows", "routing"]
