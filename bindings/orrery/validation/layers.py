"""Layers of experts by themselves: figures of one of those that ran in a row, and whether designs were predicted in their order."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from .. import launches
from . import order
from .directory import Step

_COUNTS = ("count", "launches", "predicted_launches", "measured_launches", "measured_ops")


def layer(step: Step, compared: Mapping[str, Any]) -> dict[str, Any]:
    """`compared` is what compare says of a step of `step.layers` in a row: the same of one of them.

    `predicted_launches`, `measured_launches` (None: not recorded), `host_syncs`, `communication` and `inside`, the kernels that
    send rows to other GPUs themselves, of whose time no part is told apart, are of the first GPU.
    """
    one = _of_one(compared, step.layers)
    first = one["listings"][0]
    recorded = [row["measured_launches"] for row in first["rows"]]
    rank = first["ranks"][0]
    one |= {
        "tokens": step.tokens,
        "layers": step.layers,
        "predicted_launches": sum(row["predicted_launches"] for row in first["rows"]),
        "measured_launches": None if None in recorded else sum(recorded),
        "host_syncs": sum(op["body"]["name"] == "d2h_sync" and rank in op["ranks"] for op in step.ops) // step.layers,
        "communication": first["communication"],
        "inside": list(launches.of_spans(step.ops, step.predicted, rank=rank).inside),
    }
    return one


def with_places(layers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with its place, 1 the fastest, among those of as many tokens: `predicted_place` and `measured_place`."""
    groups: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for one in layers:
        groups[one["tokens"]].append(one)
    for group in groups.values():
        for side in ("predicted", "measured"):
            times = sorted(one[f"{side}_s"] for one in group)
            for one in group:
                one[f"{side}_place"] = 1 + times.index(one[f"{side}_s"])
    return list(layers)


def agreement(layers: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Pairs of layers of as many tokens that were predicted in their measured order, of those that differ enough; None without pairs."""
    agreed, pairs = order.layers([{"tokens": one["tokens"], "predicted": one["predicted_s"], "measured": one["measured_s"]} for one in layers])
    return {"agreed": agreed, "pairs": pairs} if pairs else None


def steps_and_layers(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All of a comparison's that have a time, an error, causes and ops."""
    return [*result["steps"], *result["layers"]]


def _of_one(value: Any, layers: int, name: str = "") -> Any:
    """Times and numbers of launches, of `layers` together, over `layers`."""
    if isinstance(value, dict):
        # The causes of a difference in time are times.
        return {key: _of_one(item, layers, name if name == "causes_s" else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_of_one(item, layers, name) for item in value]
    if name.endswith("_s") and value is not None:
        return value / layers
    if name in _COUNTS and value is not None:
        return value // layers if value % layers == 0 else value / layers
    return value


__all__ = ["agreement", "layer", "steps_and_layers", "with_places"]
