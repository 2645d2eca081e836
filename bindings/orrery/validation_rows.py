"""Directories of `orrery validate` as rows of predicted and measured figures: docs/validation/results.json."""

from __future__ import annotations

import collections
import csv
import json
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
"""One figure, with FIELDS; times in s, memory in bytes."""

FIELDS = ("plan", "model", "gpus", "mode", "metric", "unit", "predicted", "measured", "basis", "calibration_revision", "date")
MEMORY_TERMS = ("weights", "kv_cache", "activations", "total")


def rows_of(directory: pathlib.Path) -> list[Row]:
    """The figures of one directory that was predicted and executed, as far as it was executed.

    Raises ValueError where a file has not the columns it should have.
    """
    deployment = _deployment(directory / "deployment.txt")
    environment = _pairs(directory / "executed/environment.txt")
    common = {
        "plan": directory.name, "model": deployment["name"], "gpus": deployment["gpus"],
        "calibration_revision": ", ".join(sorted({row["revision"] for row in _table(directory / "predicted/calibration.csv")})),
        "date": environment.get("date", ""),
    }  # fmt: skip
    figures = [*_steps(directory), *_memory(directory), *_service(directory)]
    return [{name: (common | figure)[name] for name in FIELDS} for figure in figures]


def save(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """One row a line, in a fixed order."""
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=key))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


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


def _steps(directory: pathlib.Path) -> list[Row]:
    measured: dict[str, list[float]] = collections.defaultdict(list)
    for line in _table(directory / "executed/steps.csv"):
        measured[line["name"]].append(float(line["duration_s"]))
    rows = []
    for line in _table(directory / "predicted/steps.csv"):
        name, mode = line["name"], line["mode"]
        if name not in measured:
            continue
        base = name.removesuffix(f"_{mode}")
        # The engine's own time around a step is part of it: it ends with the tokens on the host.
        predicted = float(line["duration_s"]) + float(line.get("host_s") or 0)
        spans = _table(directory / f"predicted/{name}.spans.csv")
        rows.append({"mode": mode, "metric": f"step_time/{base}", "unit": "s", "predicted": predicted,
                     "measured": statistics.median(measured[name]), "basis": _basis(spans)})  # fmt: skip
        executed = _table(directory / f"executed/{name}.spans.csv")
        if executed:
            rows.append({"mode": mode, "metric": f"kernel_time/{base}", "unit": "s", "predicted": _busiest(spans), "measured": _busiest(executed),
                         "basis": _basis(spans)})  # fmt: skip
    return rows


def _busiest(spans: Iterable[Mapping[str, str]]) -> float:
    """Summed spans of kernels and communication of the rank with most of them."""
    sums: dict[str, float] = collections.Counter()
    for span in spans:
        if span["kind"] != "host":
            sums[span["rank"]] += float(span["end_s"]) - float(span["start_s"])
    return max(sums.values())


def _basis(spans: Iterable[Mapping[str, str]]) -> str:
    sums: dict[str, float] = collections.Counter()
    for span in spans:
        sums[span["basis"]] += float(span["end_s"]) - float(span["start_s"])
    total = sum(sums.values())
    return ", ".join(f"{name} {time / total:.2f}" for name, time in sorted(sums.items())) if total > 0 else ""


def _memory(directory: pathlib.Path) -> list[Row]:
    def by_term(path: pathlib.Path) -> dict[tuple[str, str], float]:
        return {(line["rank"], line["term"]): float(line["bytes"]) for line in _table(path)}

    predicted = by_term(directory / "predicted/memory.csv")
    measured = by_term(directory / "executed/memory.csv")
    return [{"mode": "", "metric": f"memory/{term}/rank{rank}", "unit": "bytes", "predicted": bytes_, "measured": measured[rank, term], "basis": ""}
            for (rank, term), bytes_ in predicted.items() if term in MEMORY_TERMS and measured.get((rank, term), 0) > 0]  # fmt: skip


def _service(directory: pathlib.Path) -> list[Row]:
    measured = _latencies(directory, "executed")
    if not measured:
        return []
    predicted = _latencies(directory, "predicted")
    summary = json.loads((directory / "predicted/summary.json").read_text(encoding="utf-8"))
    basis = ", ".join(f"{name} {share:.2f}" for name, share in sorted(summary["basis"].items()) if share >= 0.005)
    return [{"mode": "serve", "metric": name, "unit": "tokens/s" if name.startswith("output") else "s", "predicted": predicted[name],
             "measured": measured[name], "basis": basis} for name in measured]  # fmt: skip


def _latencies(directory: pathlib.Path, side: str) -> dict[str, float]:
    """Means and 99th percentiles over the requests after warm-up, as summary.json has them."""
    requests = _table(directory / side / "requests.csv")
    if not requests:
        return {}
    requests = requests[int(_pairs(directory / "serve.txt").get("warmup", 0)):]
    found = {}
    for name in ("ttft", "tpot", "e2e"):
        times = [float(line[f"{name}_s"]) for line in requests if name != "tpot" or int(line["output_tokens"]) > 1]
        found[f"{name}_mean"] = statistics.fmean(times)
        found[f"{name}_p99"] = quantile(times, 0.99)
    first = min(float(line["arrival_s"]) for line in requests)
    last = max(float(line["finish_s"]) for line in requests)
    found["output_tokens_per_s"] = sum(int(line["output_tokens"]) for line in requests) / (last - first)
    return found


def _deployment(path: pathlib.Path) -> Row:
    fields: Row = {"gpus": 1}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split(" ")
        if words[0] == "name":
            fields["name"] = words[1].strip('"')
        elif words[0] == "mesh" and words[1] in ("dp", "tp", "cp", "pp"):
            fields["gpus"] *= int(words[2])
    return fields


def _pairs(path: pathlib.Path) -> dict[str, str]:
    if not path.exists():
        return {}
    return dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines() if " " in line)


def _table(path: pathlib.Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


__all__ = ["FIELDS", "Row", "error", "key", "load", "merge", "quantile", "rows_of", "save"]
