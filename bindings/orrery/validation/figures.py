"""Figures of a validation, as Plotly specifications (report/plotting.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..report import quantities
from ..report.plotting import Axis, Figure, rounded
from .compare import CAUSES, TERMS
from .directory import Case
from .gantt import gantt
from .layers import steps_and_layers
from .terminal import CAUSES as CAUSE_NAMES
from .terminal import signed_percent

CAUSE_COLOURS = {
    "kernel": ("$c-blue", ""),
    "launch_gap": ("$c-orange", ""),
    "overlap": ("$c-purple", ""),
    "communication": ("$c-green", ""),
    "imbalance": ("$c-red", ""),
    "scheduler": ("$c-grey", ""),
    "edges": ("$c-grey", "/"),
}
MODES = {"graph": ("$c-blue", "circle"), "eager": ("$c-orange", "diamond"), "megakernel": ("$c-green", "square")}
PREDICTED, MEASURED = "$c-blue", "$c-orange"
BAND = 0.08  # dotted lines of the scatter plot
MAX_CURVE_POINTS = 400
_PATTERN = {"fillmode": "overlay", "fgcolor": "$c-stripe", "fgopacity": 1, "size": 7, "solidity": 0.35}


def all_figures(case: Case, result: Mapping[str, Any]) -> list[Figure]:
    """Those for which there are data."""
    found = [
        scatter(steps_and_layers(result)),
        errors(steps_and_layers(result)),
        causes(steps_and_layers(result)),
        memory(result["memory"]),
        gantt(case, result["steps"]),
    ]
    if result["serving"]:
        found += [
            curve(result["serving"]["curves"], "ttft_s", "TTFT"),
            curve(result["serving"]["curves"], "tpot_s", "TPOT"),
        ]
    return [figure for figure in found if figure is not None]


def scatter(steps: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Predicted against measured, a point for each step with the interval of the prediction."""
    if not steps:
        return None
    both = np.array([step[key] for step in steps for key in ("predicted_s", "measured_s")])
    axis = Axis(is_log=True, low=float(both.min()) * 0.8, high=float(both.max()) * 1.25)
    ends = axis.place(np.array([axis.low, axis.high]))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": rounded(ends),
            "y": rounded(ends + shift),
            "hoverinfo": "skip",
            "line": {"color": "$c-grey", "width": 1.25, "dash": dash},
        }
        for shift, dash in ((0.0, "solid"), (np.log10(1 + BAND), "dot"), (np.log10(1 - BAND), "dot"))
    ]
    legend = []
    for mode, (color, symbol) in MODES.items():
        chosen = [step for step in steps if step["mode"] == mode]
        if not chosen:
            continue
        legend.append((f"{mode} mode", color, ""))
        predicted = axis.place(np.array([step["predicted_s"] for step in chosen]))
        bounds = [axis.place(np.array([step[key] for step in chosen])) for key in ("low_s", "high_s")]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": mode,
                "x": rounded(axis.place(np.array([step["measured_s"] for step in chosen]))),
                "y": rounded(predicted),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": rounded(bounds[1] - predicted),
                    "arrayminus": rounded(predicted - bounds[0]),
                    "thickness": 1,
                    "width": 3,
                    "color": color,
                },
                "marker": {"color": color, "symbol": symbol, "size": 8, "opacity": 0.8},
                "text": [
                    f"{step['name']}<br>predicted {quantities.seconds(step['predicted_s'])}, measured "
                    f"{quantities.seconds(step['measured_s'])} ({signed_percent(step['error'])})"
                    for step in chosen
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    layout = {
        "xaxis": axis.layout(quantities.short_seconds, 6) | {"title": {"text": "measured"}},
        "yaxis": axis.layout(quantities.short_seconds, 7) | {"title": {"text": "predicted"}},
        "margin": {"l": 74, "r": 12, "t": 8, "b": 48},
    }
    caption = (
        "On the solid line both agree, the dotted ones are 8 % off; bars hold the measured value "
        "in 80 of 100 cases if the tables' spreads are right."
    )
    label = f"Scatter plot of {len(steps)} steps, predicted against measured."
    return Figure("scatter", "Predicted and measured", caption, label, 380, data, layout, tuple(legend))


def errors(steps: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Signed error of each step over its measured time."""
    chosen = [step for step in steps if step["error"] is not None]
    if not chosen:
        return None
    measured = np.array([step["measured_s"] for step in chosen])
    axis = Axis(is_log=True, low=float(measured.min()) * 0.8, high=float(measured.max()) * 1.25)
    largest = max(100 * BAND * 1.25, *(abs(100 * step["error"]) * 1.1 for step in chosen))
    ends = rounded(axis.place(np.array([axis.low, axis.high])))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": ends,
            "y": [100 * level] * 2,
            "hoverinfo": "skip",
            "line": {"color": "$c-grey", "width": 1.25, "dash": "solid" if level == 0 else "dot"},
        }
        for level in (0.0, BAND, -BAND)
    ]
    for mode, (color, symbol) in MODES.items():
        of_mode = [step for step in chosen if step["mode"] == mode]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": mode,
                "x": rounded(axis.place(np.array([step["measured_s"] for step in of_mode]))),
                "y": rounded([100 * step["error"] for step in of_mode], 4),
                "marker": {"color": color, "symbol": symbol, "size": 8, "opacity": 0.8},
                "text": [
                    f"{step['name']}<br>{signed_percent(step['error'])} of {quantities.seconds(step['measured_s'])}"
                    for step in of_mode
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    layout = {
        "xaxis": axis.layout(quantities.short_seconds, 6) | {"title": {"text": "measured"}},
        "yaxis": {
            "ticksuffix": " %",
            "range": rounded([-largest, largest]),
            "title": {"text": "predicted / measured - 1"},
        },
        "margin": {"l": 66, "r": 12, "t": 8, "b": 48},
    }
    caption = "Below zero the prediction is too short. The dotted lines are 8 % off."
    legend = tuple(
        (f"{mode} mode", color, "")
        for mode, (color, _) in MODES.items()
        if any(step["mode"] == mode for step in chosen)
    )
    return Figure("errors", "Error", caption, f"Signed errors of {len(chosen)} steps.", 380, data, layout, legend)


def causes(steps: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Error of each traced step by cause, stacked; a mark where the sum lies."""
    traced = [step for step in steps if step["causes_s"]]
    if not traced:
        return None
    names = [step["name"] for step in traced]
    places = list(range(len(traced)))
    data: list[dict[str, Any]] = []
    legend = []
    shares = {cause: [100 * step["causes_s"][cause] / step["measured_s"] for step in traced] for cause in CAUSES}
    for cause in CAUSES:
        if max(map(abs, shares[cause])) < 0.005:  # nothing to see
            continue
        color, pattern = CAUSE_COLOURS[cause]
        legend.append((CAUSE_NAMES[cause], color, pattern))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": CAUSE_NAMES[cause],
                "y": places,
                "x": rounded(shares[cause], 4),
                "width": 0.62,
                "marker": {"color": color} | ({"pattern": {"shape": pattern, **_PATTERN}} if pattern else {}),
                "customdata": [[step["name"], quantities.seconds(step["causes_s"][cause])] for step in traced],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]}, %{x:+.2f} %<extra>"
                + CAUSE_NAMES[cause]
                + "</extra>",
            }
        )
    sums = [100 * sum(step["causes_s"].values()) / step["measured_s"] for step in traced]
    legend.append(("all of it", "$c-ink", ""))
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "all of it",
            "x": rounded(sums, 4),
            "y": places,
            "marker": {
                "symbol": "line-ns-open",
                "size": 15,
                "color": "$c-ink",
                "line": {"width": 3, "color": "$c-ink"},
            },
            "customdata": names,
            "hovertemplate": "%{customdata}: %{x:+.2f} %<extra>all of it</extra>",
        }
    )
    layout = {
        "barmode": "relative",
        "xaxis": {"ticksuffix": " %", "zeroline": True, "zerolinecolor": "$c-muted", "zerolinewidth": 1.5},
        "yaxis": {
            "tickvals": places,
            "ticktext": names,
            "range": [len(names) - 0.4, -0.6],
            "automargin": True,
            "showgrid": False,
        },
        "margin": {"l": 8, "r": 14, "t": 4, "b": 30},
    }
    caption = (
        "Predicted less measured, in percent of the measured step. Left of zero the prediction is too "
        "short, right of it too long; the parts add up to the mark."
    )
    label = "Error of each step by cause: " + "; ".join(f"{name} {value:+.1f} %" for name, value in zip(names, sums, strict=True))
    return Figure(
        "causes", "Error of each step by cause", caption, label, 70 + 27 * len(traced), data, layout, tuple(legend)
    )


def memory(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Terms of the rank whose measured total is largest."""
    totals = {
        row["rank"]: row["measured_bytes"]
        for row in rows
        if row["term"] == "total" and row["measured_bytes"] is not None
    }
    if not totals:
        return None
    rank = max(totals, key=lambda at: (totals[at], -at))
    of_rank = {row["term"]: row for row in rows if row["rank"] == rank and row["term"] != "total"}
    terms = [term for term in TERMS if term in of_rank]
    names = [term.replace("_", " ").replace("kv", "KV") for term in terms]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "marker": {"color": color},
            "x": rounded([(of_rank[term][key] or 0.0) / 2**30 for term in terms]),
            "text": [quantities.gibibytes(of_rank[term][key]) for term in terms],
            "textposition": "outside",
            "cliponaxis": False,
            "textfont": {"size": 11},
            "hovertemplate": "%{y}: %{x:.3f} GiB<extra>" + name + "</extra>",
        }
        for name, key, color in (("predicted", "predicted_bytes", PREDICTED), ("measured", "measured_bytes", MEASURED))
    ]
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "xaxis": {"ticksuffix": " GiB", "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
        "margin": {"l": 8, "r": 70, "t": 4, "b": 30},
    }
    label = f"Memory of rank {rank} by term, predicted and measured."
    return Figure(
        "memory",
        f"Memory of rank {rank}",
        "",
        label,
        60 + 42 * len(terms),
        data,
        layout,
        (("predicted", PREDICTED, ""), ("measured", MEASURED, "")),
    )


def curve(curves: Mapping[str, Mapping[str, Sequence[float]]], key: str, title: str) -> Figure | None:
    """Shares of requests below a time, predicted and measured."""
    values = {side: np.array(curves[key][f"{side}_s"]) for side in ("predicted", "measured")}
    if any(len(of) == 0 for of in values.values()):
        return None
    both = np.concatenate(list(values.values()))
    low, high = float(both[both > 0].min()), float(both.max())
    axis = Axis(is_log=high >= 8 * low, low=low if high >= 8 * low else 0.0, high=high)
    data = []
    for side, color in (("predicted", PREDICTED), ("measured", MEASURED)):
        of = values[side]
        shares = (np.arange(len(of)) + 1) / len(of)
        kept = np.unique(np.linspace(0, len(of) - 1, MAX_CURVE_POINTS).round().astype(int))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": side,
                "x": rounded(axis.place(of[kept])),
                "y": rounded(shares[kept], 4),
                "line": {"color": color, "width": 2, "shape": "hv"},
                "customdata": [quantities.seconds(value) for value in of[kept]],
                "hovertemplate": "%{y:.1%} within %{customdata}<extra>" + side + "</extra>",
            }
        )
    layout = {
        "xaxis": axis.layout(quantities.short_seconds, 5),
        "yaxis": {"tickformat": ".0%", "range": [0, 1.03]},
        "margin": {"l": 46, "r": 16, "t": 6, "b": 32},
    }
    label = f"Distribution of {title}, predicted and measured."
    return Figure(
        f"curve_{key}", title, "", label, 260, data, layout, (("predicted", PREDICTED, ""), ("measured", MEASURED, ""))
    )
