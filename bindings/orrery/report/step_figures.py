"""Figures of the one step that is simulated in detail: its ops by time, and one layer on ranks and links."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from . import quantities
from .plotting import Figure, rounded, time_unit
from .run_directory import Run, Span

MAX_BREAKDOWN_ROWS = 16
MAX_SPANS = 200
MAX_RANK_ROWS = 8
MAX_LINK_ROWS = 4
KIND_NAMES = {
    "kernel": ("Kernel", "$c-blue"),
    "comm": ("Communication", "$c-orange"),
    "host": ("Host", "$c-grey"),
    "link": ("Transfer on a link", "$c-purple"),
}
# Fill of a bar by how its time was obtained: solid is measured.
BASIS_PATTERNS = {"measured": "", "interpolated": "/", "borrowed": "\\", "roofline": "x"}


@dataclasses.dataclass(frozen=True)
class BreakdownRow:
    op: str
    kind: str
    basis: str
    time_s: float
    share: float


def breakdown_rows(run: Run) -> list[BreakdownRow]:
    """Ops of the chosen step over all layers, longest first; those beyond MAX_BREAKDOWN_ROWS as one row for each kind."""
    entries = run.summary["step_breakdown"]
    total = sum(entry["time_s"] for entry in entries) or 1.0
    sums: dict[tuple[str, str, str], float] = {}
    for e in entries:
        kind = "comm" if e["kind"].startswith("comm") else e["kind"]
        key = (of_all_layers(e["op"]), kind, "" if kind == "host" else str(e.get("basis", "")))
        sums[key] = sums.get(key, 0.0) + e["time_s"]
    rows = [BreakdownRow(*key, time_s, time_s / total) for key, time_s in sums.items()]
    rows.sort(key=lambda row: -row.time_s)
    rest: dict[tuple[str, str], list[BreakdownRow]] = {}
    for row in rows[MAX_BREAKDOWN_ROWS:]:
        rest.setdefault((row.kind, row.basis), []).append(row)
    shown = rows[:MAX_BREAKDOWN_ROWS]
    for (kind, basis), group in sorted(rest.items()):
        time_s = sum(row.time_s for row in group)
        name = group[0].op if len(group) == 1 else f"{len(group)} more ({kind})"
        shown.append(BreakdownRow(name, kind, basis, time_s, time_s / total))
    return shown


def of_all_layers(op: str) -> str:
    """'layers.*.o_proj' of 'layers.3.o_proj': layers that are alike are simulated as one, whose time is that of all."""
    return re.sub(r"^layers\.\d+\.", "layers.*.", op)


def step_breakdown(rows: list[BreakdownRow]) -> Figure | None:
    if not rows:
        return None
    scale, unit = time_unit(max(row.time_s for row in rows))
    groups: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row.kind, row.basis), []).append(i)
    data, legend = [], []
    for (kind, basis), indices in sorted(groups.items(), key=_legend_order):
        kind_name, color = KIND_NAMES.get(kind, (kind, "$c-grey"))
        pattern = BASIS_PATTERNS.get(basis, "")
        text = f"{kind_name}, {basis}" if basis else kind_name
        legend.append((text, color, pattern))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": text,
                "y": indices,
                "x": rounded([rows[i].time_s / scale for i in indices]),
                "width": 0.72,
                "marker": {"color": color, "line": {"width": 0}}
                | ({"pattern": _pattern(pattern)} if pattern else {}),
                "text": [f"{quantities.percent(rows[i].share)}" for i in indices],
                "textposition": "outside",
                "cliponaxis": False,
                "textfont": {"size": 12, "color": "$c-muted"},
                "customdata": [[rows[i].op, quantities.seconds(rows[i].time_s)] for i in indices],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]}, %{text}<extra>" + text + "</extra>",
            }
        )
    longest = max(row.time_s for row in rows) / scale
    layout = {
        "barmode": "overlay",
        "xaxis": {"ticksuffix": f" {unit}", "range": rounded([0, 1.14 * longest])},
        "yaxis": _row_axis([_cut(row.op, 34) for row in rows]),
        "margin": {"l": 8, "r": 14, "t": 4, "b": 30},
    }
    # Bars end where their shares still fit; names lose what nearly all begin with.
    narrow = {
        "xaxis": {"range": rounded([0, 1.55 * longest]), "nticks": 3},
        "yaxis": {"ticktext": [_cut(row.op.removeprefix("layers.*."), 22) for row in rows]},
    }
    label = (
        "Time of the chosen step by op: "
        + ", ".join(f"{row.op} {quantities.percent(row.share)}" for row in rows[:5])
        + "."
    )
    return Figure(
        "breakdown", "Where the step's time goes", "", label, 60 + 23 * len(rows), data, layout, tuple(legend), narrow
    )


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _pattern(shape: str) -> dict:
    return {
        "shape": shape,
        "fillmode": "overlay",
        "fgcolor": "$c-stripe",
        "fgopacity": 1,
        "size": 7,
        "solidity": 0.35,
    }


def _legend_order(item: tuple[tuple[str, str], list]) -> tuple:
    (kind, basis), _ = item
    kinds, bases = list(KIND_NAMES), list(BASIS_PATTERNS)
    return (
        kinds.index(kind) if kind in kinds else len(kinds),
        kind,
        bases.index(basis) if basis in bases else len(bases),
        basis,
    )


def _layer_window(spans: list[Span]) -> tuple[float, float]:
    """Start and end of the first whole layer of a rank's device spans, else of its first spans.

    Layers repeat their op names up to digits: the first name seen twice starts both layers.
    """
    seen: dict[str, int] = {}
    for i, span in enumerate(spans):
        name = re.sub(r"\d+", "#", span.name)
        if name in seen and i - seen[name] >= 4:
            return spans[seen[name]].start_s, span.start_s
        seen.setdefault(name, i)
    return spans[0].start_s, spans[min(len(spans), MAX_SPANS // 4) - 1].end_s


def step_gantt(run: Run) -> Figure | None:
    """One layer of the chosen step: a row for each rank and stream, and for the busiest links."""
    device: dict[str, list[Span]] = {}
    for span in run.spans:
        if not span.is_link and span.kind != "host":
            device.setdefault(span.row, []).append(span)
    if not device:
        return None
    fullest = min(device, key=lambda row: (-len(device[row]), _natural(row)))
    begin, end = _layer_window(device[fullest])
    inside = [span for span in run.spans if span.start_s < end and span.end_s > begin]
    rows, num_rows = _gantt_rows(inside)
    shown = [span for span in inside if span.row in rows][:MAX_SPANS]
    scale, unit = time_unit(end - begin)
    groups: dict[tuple[str, str], list[Span]] = {}
    for span in shown:
        groups.setdefault((span.kind, span.basis if span.kind in ("kernel", "comm") else ""), []).append(span)
    data, legend = [], []
    for (kind, basis), members in sorted(groups.items(), key=_legend_order):
        kind_name, color = KIND_NAMES.get(kind, (kind, "$c-grey"))
        pattern = BASIS_PATTERNS.get(basis, "")
        text = f"{kind_name}, {basis}" if basis else kind_name
        legend.append((text, color, pattern))
        # Spans are cut at the window's ends, so that their names stand inside it.
        starts = np.array([max(span.start_s, begin) for span in members])
        ends = np.array([min(span.end_s, end) for span in members])
        data.append(
            _gantt_bars(members, text, color, pattern)
            | {
                "y": [rows.index(span.row) for span in members],
                "base": rounded((starts - begin) / scale),
                "x": rounded((ends - starts) / scale),
            }
        )
    layout = {
        "barmode": "overlay",
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "xaxis": {"ticksuffix": f" {unit}", "range": rounded([0, (end - begin) / scale])},
        "yaxis": _row_axis(rows),
        "margin": {"l": 8, "r": 20, "t": 4, "b": 30},
    }
    caption = (
        f"{quantities.seconds(end - begin)} of the step, from {quantities.seconds(begin)} after its start."
    )
    if len(rows) < num_rows:
        caption += f" {len(rows)} of {num_rows} rows are shown."
    caption += " step.trace.json in the run directory holds all of it; open it in ui.perfetto.dev."
    kinds = ", ".join(text for text, _, _ in legend)
    label = f"Timeline of {len(shown)} spans on {len(rows)} rows: {kinds}."
    title, height = "One layer on ranks, streams and links", 56 + 34 * len(rows)
    return Figure("gantt", title, caption, label, height, data, layout, tuple(legend))


def _gantt_rows(inside: list[Span]) -> tuple[list[str], int]:
    """Rows to show, first ranks and then the busiest links, and how many there are in all."""
    rank_rows = sorted({span.row for span in inside if not span.is_link}, key=_natural)
    link_busy: dict[str, float] = {}
    for span in inside:
        if span.is_link:
            link_busy[span.row] = link_busy.get(span.row, 0.0) + span.end_s - span.start_s
    busiest = sorted(link_busy, key=lambda row: (-link_busy[row], _natural(row)))[:MAX_LINK_ROWS]
    return rank_rows[:MAX_RANK_ROWS] + sorted(busiest, key=_natural), len(rank_rows) + len(link_busy)


def _gantt_bars(spans: list[Span], text: str, color: str, pattern: str) -> dict:
    marker = {"color": color, "line": {"color": "$c-card", "width": 1}}
    times = [
        (quantities.seconds(span.end_s - span.start_s), quantities.seconds(span.start_s)) for span in spans
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": text,
        "width": 0.7,
        "marker": marker | ({"pattern": _pattern(pattern)} if pattern else {}),
        "text": [span.name for span in spans],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "textfont": {"size": 11, "color": "$c-onfill"},
        "customdata": [[span.name, *time] for span, time in zip(spans, times)],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]}, starts at %{customdata[2]}<extra>"
        + text
        + "</extra>",
    }


def _row_axis(names: list[str]) -> dict:
    """A vertical axis with one named row for each bar, the first on top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "range": [len(names) - 0.4, -0.6],
        "automargin": True,
        "showgrid": False,
    }


def _natural(text: str) -> list:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text)]
