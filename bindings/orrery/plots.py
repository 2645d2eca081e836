"""Plots of results for notebooks; each returns a Plotly figure."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

if TYPE_CHECKING:
    from .frames import ResultFrame
    from .simulation import RunResult, TimelineTable

# Paul Tol's bright scheme, which colour-blind people tell apart.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_KIND_COLOURS = {"kernel": "#4477aa", "comm": "#ee6677", "host": "#bbbbbb"}


def latencies(result: RunResult) -> go.Figure:
    """Share of requests at or below each TTFT, TPOT and end-to-end time."""
    columns = result.requests.columns()
    figure = go.Figure()
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "end to end")):
        values = np.sort(columns[name][np.isfinite(columns[name])])
        if len(values):
            share = np.arange(1, len(values) + 1) / len(values)
            keep = np.unique(np.linspace(0, len(values) - 1, 400).astype(int))
            figure.add_scatter(x=values[keep], y=share[keep], mode="lines", name=label)
    figure.update_xaxes(type="log", title="seconds")
    figure.update_yaxes(title="share of requests", range=[0, 1])
    return figure


def load(result: RunResult) -> go.Figure:
    """Running and waiting sequences of each replica over time."""
    columns = result.steps.columns()
    figure = go.Figure()
    for replica in np.unique(columns["replica"]):
        rows = columns["replica"] == replica
        running = columns["num_decodes"][rows] + columns["num_prefills"][rows]
        keep = np.unique(np.linspace(0, len(running) - 1, 2000).astype(int))
        time = columns["start_s"][rows][keep]
        figure.add_scatter(x=time, y=running[keep], mode="lines", name=f"running, replica {replica}")
        figure.add_scatter(x=time, y=columns["num_waiting"][rows][keep], mode="lines", name=f"waiting, replica {replica}")
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="sequences")
    return figure


def step_shares(result: RunResult) -> go.Figure:
    """Time of the chosen step by op, longest at the top."""
    rows = result.summary["step_breakdown"][:20][::-1]
    figure = go.Figure(
        go.Bar(
            x=[row["time_s"] * 1e6 for row in rows],
            y=[row["op"] for row in rows],
            orientation="h",
            marker_color=[_KIND_COLOURS[row["kind"]] for row in rows],
            customdata=[row["basis"] for row in rows],
            hovertemplate="%{y}: %{x:.1f} µs (%{customdata})<extra></extra>",
        )
    )
    figure.update_xaxes(title="microseconds")
    return figure


def timeline(table: TimelineTable, *, max_spans: int = 5000) -> go.Figure:
    """Spans as bars, one row per rank and stream; the first `max_spans` of them."""
    spans = table.to_pandas().head(max_spans)
    figure = go.Figure()
    for kind, part in spans.groupby("kind", sort=True):
        figure.add_bar(
            base=part["start_s"] * 1e6,
            x=(part["end_s"] - part["start_s"]) * 1e6,
            y="rank " + part["rank"].astype(str) + ", stream " + part["stream"].astype(str),
            orientation="h",
            name=str(kind),
            marker_color=_KIND_COLOURS[str(kind)],
            customdata=part["op"],
            hovertemplate="%{customdata}: %{x:.2f} µs<extra></extra>",
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="microseconds")
    return figure


def points(frame: ResultFrame, x: str, y: str, colour: str | None, hover: collections.abc.Sequence[str]) -> go.Figure:
    """A point for each row that has both values; `hover` names the columns that it shows."""
    rows = [row for row in frame.rows() if row.get(x) is not None and row.get(y) is not None]
    values = {row.get(colour) for row in rows} if colour else set()
    is_scale = len(values) > len(_COLOURS) and all(isinstance(value, int | float) for value in values)
    groups: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault(None if colour is None or is_scale else row.get(colour), []).append(row)
    figure = go.Figure()
    for idx, (value, part) in enumerate(groups.items()):
        scale = {"color": [row[colour] for row in part], "colorbar": {"title": colour}} if is_scale and colour else {}
        figure.add_scatter(
            x=[row[x] for row in part],
            y=[row[y] for row in part],
            mode="markers",
            name=f"{colour} {value}" if groups.keys() != {None} else "",
            marker={"size": 9, "color": _COLOURS[idx % len(_COLOURS)], **scale},
            text=["<br>".join(f"{name}: {row.get(name)}" for name in hover) for row in part],
            hovertemplate=f"%{{text}}<br>{x}: %{{x:.4g}}<br>{y}: %{{y:.4g}}<extra></extra>",
        )
    figure.update_layout(showlegend=groups.keys() != {None} and not is_scale)
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y)
    return figure
