"""Tiers behind the KV blocks of a service: what moved and was waited for, predicted and on GPUs.

Both sides write the same columns (kv_tiers_csv, sim/serve/executed_tiers.h), of the requests after the warm-up.
"""

from __future__ import annotations

import pathlib
from typing import Any

from . import typed_csv
from .typed_csv import number, seconds, size, whole, word

FILE = "kv_tiers.csv"
_COLUMNS = {
    "tier": word, "hit_tokens": whole(0), "loaded_bytes": size, "written_bytes": size, "evicted_bytes": size, "held_bytes": size,
    "capacity_bytes": size, "exposed_s": seconds, "exposed_share": number("a share, 0 to 1", lambda value: 0 <= value <= 1),
    "recomputed_tokens": whole(0),
}  # fmt: skip
_OF_TIER = ("hit_tokens", "loaded_bytes", "written_bytes", "held_bytes")
_OF_ALL = ("exposed_s", "exposed_share")


def kv_tiers(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Rows of tier, metric, predicted and measured; of all tiers together where `tier` is empty. None where a side has no tiers.

    Raises ValueError naming the file where a tier is missing or a value is none that a run leaves.
    """
    predicted_file, measured_file = (directory / side / FILE for side in ("predicted", "executed"))
    if not (predicted_file.is_file() and measured_file.is_file()):
        return []
    predicted, measured = _tiers(predicted_file), _tiers(measured_file)
    if list(predicted) != list(measured):
        raise ValueError(f"{measured_file}: found tiers {', '.join(measured)}; predicted were {', '.join(predicted)}: it is cut or of another run")
    rows = [_row(tier, name, predicted[tier], measured[tier]) for tier in predicted for name in _OF_TIER]
    first = next(iter(predicted))
    return rows + [_row("", name, predicted[first], measured[first]) for name in _OF_ALL]


def _tiers(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    found = {row["tier"]: row for _, row in typed_csv.rows(path, _COLUMNS)}
    if not found:
        raise ValueError(f"{path}: holds no tier: the file is cut")
    return found


def _row(tier: str, metric: str, predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    return {"tier": tier, "metric": metric, "predicted": predicted[metric], "measured": measured[metric]}


__all__ = ["FILE", "kv_tiers"]
