"""What the report's figures share: their specification, axes with ticks of their own, limit lines, panels.

A figure is a Plotly specification, plain dicts that are written as JSON. Plotly itself is never
imported: its JavaScript draws them in the browser. Colours are names such as "$c-blue", which
report.js replaces by the theme's CSS variables.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    title: str
    caption: str
    label: str  # what a reader who cannot see the plot is told
    height: int
    data: list
    layout: dict
    legend: tuple[tuple[str, str, str], ...] = ()  # (text, colour, pattern)
    narrow: dict = dataclasses.field(default_factory=dict)  # axis -> what a phone's width changes in it

    def spec(self) -> dict:
        found = {"name": self.name, "height": self.height, "data": self.data, "layout": self.layout}
        return found | ({"narrow": self.narrow} if self.narrow else {})


@dataclasses.dataclass(frozen=True)
class Axis:
    """A duration or count axis with its own ticks; positions are `place(values)`."""

    is_log: bool
    low: float
    high: float

    def place(self, values: np.ndarray | float) -> np.ndarray:
        return np.log10(np.maximum(values, 1e-9)) if self.is_log else np.asarray(values, dtype=float)

    def layout(self, tick_text, max_ticks: int) -> dict:
        ticks = (
            _log_ticks(self.low, self.high, max_ticks)
            if self.is_log
            else _linear_ticks(self.low, self.high, max_ticks)
        )
        low, high = float(self.place(self.low)), float(self.place(self.high))
        margin = 0.03 * (high - low)
        return {
            "tickvals": rounded(self.place(np.array(ticks))),
            "ticktext": [tick_text(tick) for tick in ticks],
            "range": rounded([low - margin, high + margin]),
        }


def value_axis(values: np.ndarray, *also: float) -> Axis:
    """Logarithmic when the values span a factor of 8 or more, linear from 0 otherwise."""
    low, high = float(values.min()), float(values.max())
    for value in also:
        low, high = min(low, value), max(high, value)
    positive = values[values > 0]
    if not positive.size:
        return Axis(False, 0.0, max(high, 1e-3))
    low = min([float(positive.min()), *also])
    if high < 8 * low:
        return Axis(False, 0.0, 1.05 * high)
    return Axis(True, low, high)


def _log_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**d for d in decades for m in mantissas if low * 0.97 <= m * 10.0**d <= high * 1.03]
        if len(ticks) <= max_ticks:
            return ticks
    return ticks[:: math.ceil(len(ticks) / max_ticks)]


def _linear_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step * (1 + 1e-9)) + 1)]


def rounded(values, digits: int = 6) -> list[float]:
    """Six significant digits are more than a plot shows and keep the page small."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=float).tolist()]


def time_unit(longest_s: float) -> tuple[float, str]:
    for scale, unit in ((60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if longest_s >= (600.0 if unit == "min" else scale):
            return scale, unit
    return 1e-6, "µs"


def limit_line(axis: Axis, limit: float, text: str, within: float | None = None) -> dict:
    """Shape and annotation of an SLO limit: upright in a CDF with `within` of it at or below the
    limit, else level. The text of an upright line stands where the curve is not: a CDF leaves the
    lower right free when it has risen before the limit, the upper left when it rises after it."""
    at = float(axis.place(limit))
    low, high = float(axis.place(axis.low)), float(axis.place(axis.high))
    along, across = ("x", "y") if within is not None else ("y", "x")
    shape = {
        "type": "line",
        f"{along}0": at,
        f"{along}1": at,
        f"{across}0": 0,
        f"{across}1": 1,
        f"{across}ref": "paper",
        "line": {"color": "$c-red", "width": 1.5, "dash": "dash"},
    }
    note = {"text": text, "showarrow": False, "font": {"color": "$c-red", "size": 12}, "bgcolor": "$c-card"}
    if within is None:
        note |= {"xref": "paper", "x": 0.01, "xanchor": "left", "y": at, "yanchor": "bottom", "yshift": 2}
    else:
        right = (at - low) / (high - low) < (0.5 if within >= 0.5 else 0.4)
        note |= {
            "yref": "paper",
            "y": 0.04 if within >= 0.5 else 0.96,
            "yanchor": "bottom" if within >= 0.5 else "top",
        }
        note |= {
            "x": at,
            "xanchor": "left" if right else "right",
            "align": "left" if right else "right",
            "xshift": 5 if right else -5,
        }
    return {"shapes": [shape], "annotations": [note]}


def panel_domains(num: int, head: float, foot: float) -> list[list[float]]:
    """[bottom, top] of panels one below the other, with room for a title above each; the last ends at 0."""
    pitch = (1.0 + foot) / num
    return [rounded([max(0.0, 1.0 + foot - (i + 1) * pitch), 1.0 - head - i * pitch], 4) for i in range(num)]


def panel_title(text: str, top: float, more: str = "") -> dict:
    """Title above a panel that ends at height `top` of the plot, at its left; `more` follows it in light type."""
    return {
        "text": f"<b>{text}</b>{more}",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": round(top, 4),
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 3,
        "xshift": -30,  # above the axis's own labels: room for long titles on a narrow page
        "showarrow": False,
        "font": {"size": 12.5},
    }
