"""Several runs as one HTML page that needs no network: their figures side by side, where their latencies come from, what differs."""

from __future__ import annotations

import html
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import files
from ..finished_run import FinishedRun
from ..report import page_parts, quantities, templates
from ..report.plotting import Figure, rounded, time_unit
from . import runs, terminal

_HERE = pathlib.Path(__file__).parent
# Of each metric: its title, its parts and their colours.
_METRICS = {
    "ttft": ("TTFT", runs.TTFT_CAUSES, ("$c-orange", "$c-blue", "$c-grey")),
    "tpot": ("Between tokens", runs.TPOT_CAUSES, ("$c-blue", "$c-purple", "$c-green", "$c-orange")),
}
# Figures of which less is better, and of which more.
_LOWER = ("ttft_s.mean", "ttft_s.p95", "ttft_s.p99", "tpot_s.mean", "tpot_s.p95", "tpot_s.p99", "e2e_s.p95", "e2e_s.p99", "preemptions", "energy.j_per_output_token", "num_gpus")
_HIGHER = ("requests_per_s", "goodput", "output_tokens_per_s", "output_tokens_per_s_per_gpu")


def render(found: Sequence[FinishedRun], path: pathlib.Path, sort: str | None = None) -> pathlib.Path:
    """Writes the page; the same runs give the same bytes. Raises ValueError for a `sort` that no run has."""
    result = runs.beside(found, sort)
    plots = {figure.name: figure for figure in (_parts(result, metric) for metric in _METRICS)}
    page = templates(_HERE).get_template("report.html.j2").render(
        result=result,
        columns=_columns(result["runs"]),
        cells=_cells(result["runs"]),
        cause_tables=[_cause_table(result, metric) for metric in _METRICS],
        steps=_steps(result),
        plots=plots,
        shown=terminal.shown,
        questions=list(dict.fromkeys(row["question"] for row in result["runs"] if row["question"])),
        data=json.dumps({"runs": result["runs"]}, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        own_style=(_HERE.parent / "search" / "report.css").read_text(encoding="utf-8"),
        own_script=(_HERE / "report_page.js").read_text(encoding="utf-8"),
        **page_parts([figure.spec() for figure in plots.values()]),
    )
    files.write_text(path, page)
    return path


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Title and path of each figure that a run has."""
    return {title: path for title, path in runs.COLUMNS.items() if any(row.get(path) is not None for row in rows)}


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Of each run and figure: its text, its number to sort by, and whether no other run is better, which is said of what differs."""
    table = []
    columns = _columns(rows)
    best = {}
    for path in columns.values():
        values = [row[path] for row in rows if row.get(path) is not None]
        if len({terminal.cell(path, value) for value in values}) > 1 and path in (*_LOWER, *_HIGHER):
            best[path] = terminal.cell(path, min(values) if path in _LOWER else max(values))
    for row in rows:
        table.append({
            title: {"text": terminal.cell(path, row.get(path)), "value": row.get(path), "is_best": best.get(path) == terminal.cell(path, row.get(path))}
            for title, path in columns.items()
        })  # fmt: skip
    return table


def _parts(result: Mapping[str, Any], metric: str) -> Figure:
    """A bar for each run, made of the parts of the mean."""
    title, parts, colours = _METRICS[metric]
    names = [html.escape(row["run"]) for row in result["runs"]][::-1]  # Plotly reads markup
    means = {part: [causes[metric][part] for causes in result["causes"]][::-1] for part in parts}
    used = [part for part in parts if any(abs(value) > 1e-9 for value in means[part])]
    totals = [causes[metric]["mean"] for causes in result["causes"]][::-1]
    scale, unit = time_unit(max(totals, default=0) or 1e-6)
    data = []
    for part, colour in zip(parts, colours):
        if part not in used:
            continue
        data.append({
            "type": "bar", "orientation": "h", "name": terminal.PART[part], "y": list(range(len(names))), "x": rounded(np.array(means[part]) / scale),
            "marker": {"color": colour},
            "customdata": names, "hovertext": [quantities.seconds(value) for value in means[part]],
            "hovertemplate": f"%{{customdata}}<br>{terminal.PART[part]}: %{{hovertext}}<extra></extra>",
        })  # fmt: skip
    layout = {
        "barmode": "relative", "bargap": 0.35, "margin": {"l": 140, "r": 16, "t": 8, "b": 44},
        "xaxis": {"title": {"text": f"{title}, mean, {unit}"}, "nticks": 6},
        "yaxis": {"tickvals": list(range(len(names))), "ticktext": [_short(name) for name in names], "tickfont": {"size": 12, "color": "$c-ink"}},
    }  # fmt: skip
    label = f"{title}, mean: " + ", ".join(f"{name} {quantities.seconds(total)}" for name, total in zip(names[::-1], totals[::-1])) + "."
    legend = tuple((terminal.PART[part], colour, "") for part, colour in zip(parts, colours) if part in used)
    return Figure(f"parts_{metric}", title, "", label, 70 + 40 * len(names), data, layout, legend)


def _short(name: str) -> str:
    return name if len(name) <= 18 or "&" in name else "…" + name[-17:]


def _cause_table(result: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Of each run its parts, and what they are more than the first run's."""
    title, parts, _ = _METRICS[metric]
    first = result["causes"][0][metric]
    rows = []
    for part in ("mean", *parts):
        if all(abs(causes[metric][part]) < 1e-9 for causes in result["causes"]):
            continue
        cells = []
        for i, causes in enumerate(result["causes"]):
            more = causes[metric][part] - first[part]
            cells.append((quantities.seconds(causes[metric][part]), "" if i == 0 else f"{'+' if more >= 0 else '−'}{quantities.seconds(abs(more))}"))
        rows.append((terminal.PART[part], cells))
    return {"title": title, "rows": rows}


def _steps(result: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    return [(title, [write(steps[name]) for steps in result["steps"]]) for name, (title, write) in terminal.FACTS.items()]


__all__ = ["render"]
