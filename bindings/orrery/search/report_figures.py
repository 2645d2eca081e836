"""Figures of the report of an answer: the load curve, what limits the plan, what other traffic and limits would need.

The front is drawn by capacity.js, since its axes can be chosen; here stands what it starts from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..report import quantities
from ..report.plotting import Figure, limit_line, rounded, value_axis
from .checks import check_name
from .saved import Saved

_MARGIN = {"l": 58, "r": 16, "t": 14, "b": 44}
LEAST_GAIN = 0.005  # of the highest rate, that is drawn
LEGEND_OF_LOADS = (("p50", "$c-blue", ""), ("p99", "$c-orange", ""))


def front(saved: Saved) -> Figure | None:
    """The place of the front; none without operating points."""
    if not saved.answer["fronts"]:
        return None
    best = [point for point in saved.answer["fronts"] if point["is_front"]]
    label = f"Tokens per second of a GPU against those of a user, {len(saved.answer['fronts'])} operating points of closed form"
    if best:
        label += f"; on the front from {best[0]['words']} to {best[-1]['words']}"
    return Figure("front", "", "", label + ". The plans are in the table below.", 440, [], {"margin": _MARGIN})


def load_curves(saved: Saved) -> list[Figure]:
    """TTFT and TPOT of the best plan against requests per second, from idle to beyond the highest rate."""
    points = [point for point in saved.answer["load_curve"] or [] if not point["outcome"].get("error")]
    return [_load_curve(saved, points, name) for name in ("ttft", "tpot")] if len(points) > 1 and saved.answer["saturation"] else []


def _load_curve(saved: Saved, points: list[dict[str, Any]], name: str) -> Figure:
    rates = np.array([point["requests_per_s"] for point in points])
    values = {q: np.array([point["outcome"][f"{name}_s"][q] for point in points]) for q in ("p50", "p99")}
    limits = [limit for limit in saved.answer["slo"] if limit["name"].partition("_")[0] == name]
    axis = value_axis(np.concatenate(list(values.values())), *(limit["limit"] for limit in limits))
    kept = [not p["outcome"]["load"]["is_overloaded"] and p["outcome"]["load"]["is_settled"] for p in points]
    data = []
    for quantile, color, _ in LEGEND_OF_LOADS:
        texts = [f"{quantities.seconds(value)} at {quantities.number(rate)} requests/s" + ("" if ok else "; requests pile up")
                 for value, rate, ok in zip(values[quantile].tolist(), rates.tolist(), kept)]  # fmt: skip
        data.append({
            "type": "scatter", "mode": "lines+markers", "name": quantile, "x": rounded(rates), "y": rounded(axis.place(values[quantile])),
            "line": {"color": color, "width": 2.25}, "text": texts, "hovertemplate": f"{quantile} %{{text}}<extra></extra>",
            "marker": {"size": 7, "color": color, "symbol": ["circle" if ok else "circle-open" for ok in kept]},
        })  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "requests/s"}, "range": rounded([0, 1.03 * rates.max()]), "nticks": 6},
        "yaxis": axis.layout(quantities.short_seconds, 6), "margin": _MARGIN, "shapes": [], "annotations": [],
    }  # fmt: skip
    for limit in limits:
        line = limit_line(axis, limit["limit"], f"{check_name(limit)} {quantities.short_seconds(limit['limit'])}")
        layout["shapes"] += line["shapes"]
        layout["annotations"] += line["annotations"]
    _mark_highest(saved, layout)
    title = f"{name.upper()} against load"
    last = int(np.flatnonzero(np.array([point["of_highest"] for point in points]) <= 1)[-1])
    label = (f"{title}: at {quantities.number(float(rates[0]))} requests/s p99 {quantities.seconds(float(values['p99'][0]))}, "
             f"at {quantities.number(float(rates[last]))} {quantities.seconds(float(values['p99'][last]))}.")  # fmt: skip
    return Figure(f"load_{name}", title, "", label, 300, data, layout, LEGEND_OF_LOADS)


def _mark_highest(saved: Saved, layout: dict[str, Any]) -> None:
    """The highest rate that holds the SLO with its range over draws, and the rate asked for."""
    offered, saturation = saved.answer["offered_requests_per_s"], saved.answer["saturation"]
    low, at, high = (float(f"{offered * saturation[key]:.6g}") for key in ("low", "load", "high"))
    asked = float(f"{offered:.6g}")
    upright = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    layout["shapes"] += [
        {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": low, "x1": high, "fillcolor": "$c-green-soft", "line": {"width": 0}, "layer": "below"},
        upright | {"x0": at, "x1": at, "line": {"color": "$c-green", "width": 1.5}},
        upright | {"x0": asked, "x1": asked, "line": {"color": "$c-grey", "width": 1.5, "dash": "dot"}},
    ]  # fmt: skip


def limits(saved: Saved) -> Figure | None:
    """What one more of each part would add to the highest rate."""
    found = [limit for limit in saved.answer["limits"] or [] if abs(limit["gain"]) >= LEAST_GAIN]
    if not found:
        return None
    nothing = [limit["what"] for limit in saved.answer["limits"] if abs(limit["gain"]) < LEAST_GAIN]
    gains = [100 * limit["gain"] for limit in found][::-1]
    words = [limit["what"] for limit in found][::-1]
    longest = max(1.0, *gains)
    data = [{
        "type": "bar", "orientation": "h", "x": rounded(gains), "y": list(range(len(gains))), "marker": {"color": "$c-blue"}, "width": 0.42,
        "text": [f"<b>{gain:+.1f} %</b>" for gain in gains], "textposition": "outside", "cliponaxis": False, "textfont": {"color": "$c-ink"},
        "hovertext": words, "hovertemplate": "%{hovertext}: %{text}<extra></extra>",
    }]  # fmt: skip
    notes = [{"text": text, "x": 0, "xref": "paper", "xanchor": "left", "y": i + 0.26, "yanchor": "bottom", "showarrow": False,
              "font": {"size": 12.5}} for i, text in enumerate(words)]  # fmt: skip
    layout = {
        "xaxis": {"range": rounded([min(0.0, *gains) * 1.2, 1.2 * longest]), "visible": False},
        "yaxis": {"visible": False, "range": [-0.5, len(gains) - 0.2]}, "annotations": notes, "margin": {"l": 4, "r": 8, "t": 4, "b": 4},
    }  # fmt: skip
    label = "What more of a part would add to the highest rate: " + ", ".join(f"{w} {g:+.1f} %" for w, g in zip(words[::-1], gains[::-1]))
    caption = f"Less than {100 * LEAST_GAIN:.0g} %: {', '.join(nothing)}." if nothing else ""
    return Figure("limits", "", caption, label + ".", 44 * len(gains) + 16, data, layout)


def growth(saved: Saved) -> Figure | None:
    """The fewest GPUs of the best plan's shape against traffic."""
    points = [v for v in _variations(saved) if v["what"] == "traffic" and v["num_gpus"]]
    if len(points) < 2:
        return None
    rates = [v["value"] for v in points]
    gpus = [v["num_gpus"] for v in points]
    data = [{
        "type": "scatter", "mode": "lines+markers+text", "x": rounded(rates), "y": gpus, "line": {"color": "$c-blue", "width": 2.25},
        "marker": {"size": [12 if v["factor"] == 1 else 8 for v in points], "color": "$c-blue", "opacity": 1},
        "text": [f"<b>{count}</b>" for count in gpus], "textposition": "top center", "cliponaxis": False,
        "customdata": [f"{v['factor']:g} × the traffic" for v in points],
        "hovertemplate": "%{customdata}, %{x:.3g} requests/s: %{y} GPUs<extra></extra>",
    }]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "requests/s"}, "range": rounded([0, 1.08 * max(rates)]), "nticks": 6},
        "yaxis": {"title": {"text": "GPUs"}, "range": [0, 1.22 * max(gpus)], "nticks": 6}, "margin": _MARGIN,
    }  # fmt: skip
    label = "Fewest GPUs against traffic: " + ", ".join(f"{count} at {quantities.number(rate)} requests/s" for rate, count in zip(rates, gpus))
    return Figure("growth", "As traffic grows", "", label + ".", 320, data, layout)


def others(saved: Saved) -> Figure | None:
    """The fewest GPUs of the best plan's shape at other lengths and limits."""
    points = [v for v in _variations(saved) if v["what"] != "traffic"]
    if not points:
        return None
    points = points[::-1]
    base = saved.plan["num_gpus"]
    shown = [v["num_gpus"] or 0 for v in points]
    data = [{
        "type": "bar", "orientation": "h", "x": shown, "y": [variation_words(v) for v in points], "width": 0.6,
        "marker": {"color": ["$c-grey" if count == base else "$c-green" if count < base else "$c-orange" for count in shown]},
        "text": [f"<b>{count}</b>" if count else v["why"] for v, count in zip(points, shown)], "textposition": "outside",
        "textfont": {"color": "$c-ink"}, "cliponaxis": False, "hovertemplate": "%{y}: %{text}<extra></extra>",
    }]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "GPUs"}, "range": [0, 1.25 * max(base, *shown)], "nticks": 5}, "margin": {"l": 150, "r": 16, "t": 14, "b": 44},
        "yaxis": {"tickfont": {"size": 12, "color": "$c-ink"}, "ticklen": 3, "range": [-0.6, len(points) - 0.4]},
        "shapes": [{"type": "line", "x0": base, "x1": base, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "$c-muted", "width": 1.5, "dash": "dot"}}],
    }  # fmt: skip
    label = f"Fewest GPUs at other lengths and limits; as asked {base}: " + ", ".join(
        f"{variation_words(v)} {v.get('num_gpus') or v['why']}" for v in points[::-1]
    )
    return Figure("others", "At other lengths and limits", "", label + ".", 320, data, layout)


def _variations(saved: Saved) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (saved.answer["sensitivity"] or {}).get("variations", [])
    return found


def variation_words(variation: dict[str, Any]) -> str:
    """'4,000 prompt tokens', 'TPOT p99 32 ms', '30 requests/s'."""
    if variation["what"] == "traffic":
        return f"{quantities.number(variation['value'])} requests/s"
    if variation["what"] in ("prompt_tokens", "output_tokens"):
        return f"{variation['value']:,.0f} {variation['what'].replace('_', ' ')}"
    return f"{variation['what']} {quantities.short_seconds(variation['value'])}"


