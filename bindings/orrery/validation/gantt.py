"""One layer of a step, predicted and measured below each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..report import quantities
from ..report.plotting import Figure, rounded, time_unit
from .directory import Case, Span, Step

MAX_GANTT_RANKS = 4
KIND_COLOURS = {"kernel": ("kernels", "$c-blue"), "comm": ("communication", "$c-green"), "host": ("host", "$c-grey")}


def gantt(case: Case, steps: Sequence[Mapping[str, Any]]) -> Figure | None:
    """One layer of the traced step that is furthest off, predicted and measured below each other."""
    traced = [step for step in steps if step["is_traced"] and step["error"] is not None]
    if not traced:
        return None
    name = max(traced, key=lambda step: abs(step["error"]))["name"]
    step = next(step for step in case.steps if step.name == name)
    rows: list[str] = []
    bars: dict[str, list[tuple[int, Span, float]]] = {}
    longest = 0.0
    for rank in sorted({span.rank for span in step.predicted})[:MAX_GANTT_RANKS]:
        for side, spans in (("predicted", step.predicted), ("measured", step.measured)):
            layer = _layer(step, [span for span in spans if span.rank == rank])
            if not layer:
                continue
            begin = min(span.start_s for span in layer)
            longest = max(longest, max(span.end_s for span in layer) - begin)
            streams = sorted({span.stream for span in layer})
            for stream in streams:
                rows.append(f"{side} rank {rank}" + (f" stream {stream}" if len(streams) > 1 else ""))
                for span in layer:
                    if span.stream == stream:
                        bars.setdefault(span.kind, []).append((len(rows) - 1, span, begin))
    scale, unit = time_unit(longest)
    data = [_bars(*KIND_COLOURS.get(kind, (kind, "$c-grey")), members, scale) for kind, members in sorted(bars.items())]
    layout = {
        "barmode": "overlay",
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "xaxis": {"ticksuffix": f" {unit}", "range": rounded([0, 1.02 * longest / scale])},
        "yaxis": {
            "tickvals": list(range(len(rows))),
            "ticktext": rows,
            "range": [len(rows) - 0.4, -0.6],
            "automargin": True,
            "showgrid": False,
        },
        "margin": {"l": 8, "r": 20, "t": 4, "b": 30},
    }
    caption = (
        f"One layer of {name}, the step that is furthest off; both sides start at the layer's first op. timelines.trace.json "
        "holds all steps; open it in ui.perfetto.dev."
    )
    legend = tuple((*KIND_COLOURS.get(kind, (kind, "$c-grey")), "") for kind in sorted(bars))
    label = f"Timeline of one layer of {name}, predicted and measured."
    return Figure(
        "gantt", "One layer, predicted and measured", caption, label, 56 + 38 * len(rows), data, layout, legend
    )


def _layer(step: Step, spans: Iterable[Span]) -> list[Span]:
    """Spans of the second copy of what is repeated (the first waits for the embedding), else of everything."""
    spans = list(spans)
    copies = {span.copy for span in spans}
    wanted = 1 if 1 in copies else 0
    repeated = {op["op"] for op in step.ops if op["copy"] == 1} if wanted else {span.op for span in spans}
    return [span for span in spans if span.op in repeated and span.copy == wanted]


def _bars(text: str, color: str, members: Sequence[tuple[int, Span, float]], scale: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": text,
        "width": 0.7,
        "marker": {"color": color, "line": {"color": "$c-card", "width": 1}},
        "y": [row for row, _, _ in members],
        "base": rounded([(span.start_s - begin) / scale for _, span, begin in members]),
        "x": rounded([(span.end_s - span.start_s) / scale for _, span, _ in members]),
        "text": [span.op.rpartition(".")[2] for _, span, _ in members],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "textfont": {"size": 11, "color": "$c-onfill"},
        "customdata": [[span.op, quantities.seconds(span.end_s - span.start_s)] for _, span, _ in members],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]}<extra>" + text + "</extra>",
    }
