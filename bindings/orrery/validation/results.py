"""Directories of `orrery validate` as rows of predicted and measured figures: docs/validation/results.json."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import files
from .compare import TERMS, call_text, compare
from .directory import Case, Span, read
from .tables import times_alone
from .typed_csv import read_text, shown, whole

Row = dict[str, Any]
"""One figure, with FIELDS; times in s, memory in bytes."""

FIELDS = ("plan", "model", "gpus", "mode", "metric", "unit", "predicted", "measured", "basis", "calibration_revision", "date")


def rows_of(directory: pathlib.Path) -> list[Row]:
    """The figures of one directory that was predicted and executed, as far as it was executed.

    Raises ValueError naming a file that is missing or does not fit.
    """
    case = read(directory)
    result = compare(case)
    common = {
        "plan": directory.name, "model": _model(directory / "deployment.txt"), "gpus": _num_gpus(case),
        "calibration_revision": ", ".join(result["calibration_revisions"]), "date": case.environment.get("date", ""),
    }  # fmt: skip
    figures = [*_steps(case, result["steps"]), *_memory(result["memory"]), *_service(result["serving"], directory)]
    return [{name: (common | figure)[name] for name in FIELDS} for figure in figures]


def rows_alone(directory: pathlib.Path, times: Mapping[str, float]) -> list[Row]:
    """Steps in graph mode against the sum of their kernels timed alone: of each step all of whose kernels are in `times`.

    `predicted` is the sum, `measured` the step from its first launch until its tokens are on the host.
    """
    kept = {row["metric"].removeprefix("step_time/"): row for row in rows_of(directory)
            if row["metric"].startswith("step_time/") and row["mode"] == "graph"}  # fmt: skip
    rows = []
    for step in read(directory).steps:
        base = step.name.removesuffix(f"_{step.mode}")
        calls = [call_text(op) for op in step.ops if op["body"]["kind"] == "kernel"]
        if step.mode == "graph" and base in kept and len(calls) == len(step.ops) and set(calls) <= set(times):
            rows.append(kept[base] | {"metric": f"kernels_alone/{base}", "predicted": sum(times[call] for call in calls), "basis": "measured 1.00"})
    return rows


def save(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """One row a line, in a fixed order."""
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=key))
    files.write_text(path, f"[\n{lines}\n]\n")


def load(path: pathlib.Path) -> list[Row]:
    """Rows that `save` wrote; none where the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def key(row: Row) -> tuple[str, str, str]:
    """What makes two rows the same figure."""
    return (row["plan"], row["metric"], row["mode"])


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All figures of plans in `new` replace those of the same plans in `old`."""
    added = list(new)
    plans = {row["plan"] for row in added}
    return sorted([row for row in old if row["plan"] not in plans] + added, key=key)


def error(row: Row) -> float:
    """(predicted - measured) / measured."""
    return (row["predicted"] - row["measured"]) / row["measured"]


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the values' order statistics; `values` is not empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _steps(case: Case, compared: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    steps = {step.name: step for step in case.steps}
    for found in compared:
        name, mode, basis = found["name"], found["mode"], _basis(found["basis"])
        base = name.removesuffix(f"_{mode}")
        common = {"mode": mode, "unit": "s", "basis": basis}
        rows.append(common | {"metric": f"step_time/{base}", "predicted": found["predicted_s"], "measured": found["measured_s"]})
        # "predicted" is an end of the 80 % interval.
        rows += [common | {"metric": f"step_{end}/{base}", "predicted": found[f"{end}_s"], "measured": found["measured_s"]} for end in ("low", "high")]
        rows.append(common | {"metric": f"device_time/{base}", "predicted": found["predicted_device_s"], "measured": found["measured_device_s"]})
        if found["is_traced"]:
            step = steps[name]
            rows.append(common | {"metric": f"busy_time/{base}", "predicted": _busiest(step.predicted), "measured": _busiest(step.measured)})
    return rows


def _busiest(spans: Iterable[Span]) -> float:
    """Time during which kernels or communication run on the rank where that is longest.

    Launches may start before the one ahead has ended and wait for it, so their durations do not add up.
    """
    busy: dict[int, float] = collections.defaultdict(float)
    reached: dict[int, float] = collections.defaultdict(float)
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.kind != "host" and span.end_s > reached[span.rank]:
            busy[span.rank] += span.end_s - max(span.start_s, reached[span.rank])
            reached[span.rank] = span.end_s
    return max(busy.values())


def _basis(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in sorted(shares.items()) if share >= 0.005)


def _memory(compared: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [{"mode": "", "metric": f"memory/{row['term']}/rank{row['rank']}", "unit": "bytes", "predicted": row["predicted_bytes"],
             "measured": row["measured_bytes"], "basis": ""}
            for row in compared if row["term"] in TERMS and row["measured_bytes"]]  # fmt: skip


def _service(compared: Mapping[str, Any] | None, directory: pathlib.Path) -> list[Row]:
    if compared is None:
        return []
    file = directory / "predicted/summary.json"
    try:
        shares = {name: float(share) for name, share in json.loads(read_text(file))["basis"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: found no shares of 'basis' ({error}); expected what 'orrery validate' wrote") from None
    common = {"mode": "serve", "basis": _basis(shares)}
    rows = [common | {"metric": f"{row['latency'].removesuffix('_s')}_{row['quantile']}", "unit": "s", "predicted": row["predicted_s"],
                      "measured": row["measured_s"]} for row in compared["latencies"]]  # fmt: skip
    rows += [common | {"metric": row["metric"], "unit": "1/s", "predicted": row["predicted"], "measured": row["measured"]}
             for row in compared["rates"] if row["metric"].endswith("_per_s")]  # fmt: skip
    rows += [common | {"metric": f"executed_step/{row['class'].replace(',', '').replace(' ', '_')}", "unit": "s", "predicted": row["predicted_s"],
                       "measured": row["measured_s"]} for row in compared["steps"]]  # fmt: skip
    return rows


def _num_gpus(case: Case) -> int:
    stated = case.environment.get("num_gpus", "1")
    try:
        return whole(1, 1_000_000)(stated)
    except ValueError as error:
        raise ValueError(f"{case.directory / 'executed/environment.txt'}: num_gpus: found {shown(stated)}, expected {error}") from None


def _model(deployment: pathlib.Path) -> str:
    for line in deployment.read_text(encoding="utf-8").splitlines():
        if line.startswith("name "):
            return line.removeprefix("name ").strip('"')
    raise ValueError(f"{deployment}: has no line 'name'")


__all__ = ["FIELDS", "Row", "error", "key", "load", "merge", "quantile", "rows_alone", "rows_of", "save", "times_alone"]
