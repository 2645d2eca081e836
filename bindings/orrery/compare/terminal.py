"""Comparisons as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..report import quantities
from ..text_table import aligned, printable
from . import against_bench, runs
from .fit import GAIN, Fitted

PART = {
    "mean": "mean",
    "total": "predicted - measured",
    "arrival": "arrival: other times and lengths",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "stream": "on the way to the client",
    "decode_steps": "steps of decodes alone",
    "mixed_steps": "steps with prompts",
    "transfer": "KV transfer",
    "between_steps": "between steps",
}
FACTS = {
    "decodes_per_step": ("decodes in a step without prompts", quantities.number),
    "decode_step_s": ("such a step", quantities.seconds),
    "prompt_tokens_per_step": ("prompt tokens in a step with prompts", quantities.number),
    "prompt_step_s": ("such a step", quantities.seconds),
    "share_with_prompts": ("steps with prompts", quantities.percent),
}


def of_runs(result: Mapping[str, Any]) -> str:
    """The table, and for two runs what differs and why."""
    parts = [_table(result["runs"])]
    if "scenario" in result:
        parts += [_scenario(result["scenario"]), _causes(result["causes"]), _steps(result["steps"])]
    return "\n\n".join(parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A run is a column where there are few, so that lines stay short."""
    cells = {title: [cell(path, row.get(path)) for row in rows] for title, path in runs.COLUMNS.items()}
    cells["overloaded"] = [{True: "yes", False: "no"}.get(row["is_overloaded"], quantities.NO_VALUE) for row in rows]
    if len(rows) <= 4:
        body = [("plan", *(row["plan"] for row in rows)), *((title, *values) for title, values in cells.items())]
        return aligned(("", *(row["run"] for row in rows)), body, right=range(1, len(rows) + 1))
    body = [(row["run"], row["plan"], *(values[i] for values in cells.values())) for i, row in enumerate(rows)]
    return aligned(("run", "plan", *cells), body, right=range(2, len(cells) + 2))


def cell(path: str, value: float | None) -> str:
    if path.rpartition(".")[0].endswith("_s"):
        return quantities.seconds(value)
    if path.startswith("kv_utilisation"):
        return quantities.percent(value)
    return quantities.count(value) if path in ("num_gpus", "preemptions") else quantities.number(value)


def _scenario(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "The scenarios are the same."
    return aligned(("what differs", "first", "second"), [(row["key"], shown(row["a"]), shown(row["b"])) for row in rows])


def shown(value: str | None) -> str:
    if value is None:
        return quantities.NO_VALUE
    return value if len(value) <= 60 else value[:57] + "..."


def _causes(causes: Mapping[str, Any]) -> str:
    lines = []
    for metric, title in (("ttft", "TTFT"), ("tpot", "between tokens")):
        for part, row in causes[metric].items():
            if part == "mean" or any(abs(row[side]) >= 5e-8 for side in ("a", "b")):
                name = f"{title}, mean" if part == "mean" else f"  {PART[part]}"
                lines.append((name, quantities.seconds(row["a"]), quantities.seconds(row["b"]), _signed(row["difference"])))
    return aligned(("cause", "first", "second", "difference"), lines, right=(1, 2, 3))


def _steps(facts: Mapping[str, Any]) -> str:
    rows = [(title, shown(facts[name]["a"]), shown(facts[name]["b"])) for name, (title, shown) in FACTS.items()]
    return aligned(("steps, on average", "first", "second"), rows, right=(1, 2))


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return quantities.NO_VALUE
    return "0 s" if abs(seconds) < 5e-10 else ("+" if seconds > 0 else "-") + quantities.seconds(abs(seconds))


def _percent(share: float | None) -> str:
    return quantities.NO_VALUE if share is None else f"{round(100 * share, 1) + 0.0:+.1f} %"


def of_bench(result: Mapping[str, Any]) -> str:
    """Figures and their errors, then the split."""
    counts = result["requests"]
    head = f"{printable(result['run'])} against {printable(result['bench'])} ({result['tool']}, {counts['bench']:,} requests)"
    parts = [head, _figures(result), _split(result["split"])]
    if result["notes"]:
        parts.append("\n".join(f"- {printable(note)}" for note in result["notes"]))
    return "\n\n".join(parts)


def _figures(result: Mapping[str, Any]) -> str:
    rows = []
    for metric, statistics in result["figures"].items():
        for name, found in statistics.items():
            rows.append((f"{against_bench.METRICS[metric]} {name}", quantities.seconds(found["predicted"]), quantities.seconds(found["measured"]),
                         _percent(found["error"]), quantities.seconds(found["replayed"])))  # fmt: skip
    for rate, title in against_bench.RATES.items():
        found = result["rates"][rate]
        rows.append((title, quantities.number(found["predicted"]), quantities.number(found["measured"]), _percent(found["error"]), ""))
    return aligned(("", "predicted", "measured", "error", "predicted for the requests as sent"), rows, right=(1, 2, 3, 4))


def _split(split: Mapping[str, Any]) -> str:
    metrics = {"TTFT": split["ttft"], "TPOT": split["tpot"], "end to end": split["e2e"]}
    rows = []
    for part in ("total", "arrival", "queue", "prefill", "decode"):
        cells = [_signed(found[part]) if part in found else "" for found in metrics.values()]
        rows.append((PART[part] if part == "total" else f"  {PART[part]}", *cells))
    lines = [aligned(("means", *metrics), rows, right=(1, 2, 3))]
    if split["offered_per_s"]:
        offered, realised = split["offered_per_s"]
        lines.append(f"offered {quantities.number(offered)} requests/s, really sent {quantities.number(realised)}")
    if split["prefill_line"]:
        constant, slope = split["prefill_line"]
        lines.append(f"prefill: {_signed(constant)} of each request, {_signed(slope)} of each prompt token")
    return "\n".join(lines)


def of_fit(fitted: Fitted) -> str:
    """The times that moved, and the errors before and after."""
    times = [(path, quantities.seconds(fitted.before[path]), quantities.seconds(fitted.after[path])) for path in fitted.moved]
    moved = aligned(("time of the profile", "before", "fitted"), times, right=(1, 2)) if times else (
        f"No host time of profile {fitted.profile} lowers the loss by {100 * GAIN:.0f} % or more: the difference is not of the host.")  # fmt: skip
    rows = []
    for data, sides in fitted.errors.items():
        for metric in sides["before"].metrics:
            for when, errors in sides.items():
                found = errors.metrics[metric]
                rows.append((data, f"{errors.requests:,}", against_bench.METRICS[metric], when, f"{100 * found['mean_absolute']:.1f} %",
                             *(_percent(found[key]) for key in ("of_mean", "of_p50", "of_p95", "of_p99"))))  # fmt: skip
    header = ("data", "requests", "", "", "mean absolute error", "of the mean", "p50", "p95", "p99")
    table = aligned(header, rows, right=(1, 4, 5, 6, 7, 8))
    return f"{moved}\n\n{table}\n\nheld out: {printable(fitted.held_out)}"


__all__ = ["of_bench", "of_fit", "of_runs"]
