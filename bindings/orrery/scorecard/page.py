"""The scorecard as one HTML file that needs no network: scatter plots, tables, intervals, coverage."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas

from .. import files
from ..report import page_parts, quantities, templates
from ..report.plotting import Axis, Figure, rounded
from . import calibration, explain, statistics, text
from .outcomes import Outcome

TITLE = "Published measurements and simulated ones"
_HERE = pathlib.Path(__file__).parent
SHOWN = (*text.MAIN, "TTFT p50", "TPOT p50")  # metrics with a scatter plot
COLOURS = ("$c-blue", "$c-orange", "$c-green", "$c-purple", "$c-red", "$c-grey")
BAND = 0.25  # the dotted lines: simulated 25 % above and below published


def check_target(path: pathlib.Path, *, force: bool) -> None:
    """Raises FileExistsError when the page may not be written to `path`, ValueError when there is no directory for it.

    It may where nothing is and over an earlier page; with `force` over any file, and in the place of a symlink.
    """
    if not path.parent.is_dir():
        raise ValueError(f"found no directory '{path.parent}' for '{path.name}'")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"'{path}' exists and is no file; expected a file, or a new name")
    if force or not os.path.lexists(path):
        return
    if path.is_symlink():
        raise FileExistsError(f"'{path}' is a symlink; expected a new name, or --force to put the page in its place")
    with path.open("rb") as file:
        if f"<title>{TITLE}".encode() not in file.read(1 << 16):
            raise FileExistsError(f"'{path}' exists and is no page of a scorecard; expected a new name, or --force to replace it")


def write(path: pathlib.Path, outcomes: Sequence[Outcome]) -> None:
    """Writes the page. The same outcomes give the same bytes."""
    errors = statistics.table(outcomes)
    figures = scatters(errors) if len(errors) else []
    html = templates(_HERE).get_template("page.html.j2").render(
        title=TITLE,
        coverage=text.coverage(outcomes).splitlines(),
        cards=cards(errors) if len(errors) else [],
        figures=figures,
        tables=tables(outcomes, errors) if len(errors) else [],
        worst=explain.worst(outcomes),
        headline=text.headline,
        left_out=text.reasons(outcomes),
        **page_parts([figure.spec() for figure in figures]),
    )
    files.write_text(path, html)


def cards(errors: pandas.DataFrame) -> list[dict[str, str]]:
    """MAPE of the main metrics over rows that do not contradict themselves."""
    consistent = errors[errors["contradiction"] == ""]
    found = statistics.errors_by(consistent, "metric").set_index("metric") if len(consistent) else pandas.DataFrame()
    return [
        {
            "title": metric,
            "value": text.percent(found.loc[metric, "mape"]),
            "unit": "% MAPE",
            "detail": f"median {text.percent(found.loc[metric, 'median'])} %, "
            f"bias {text.percent(found.loc[metric, 'bias'], signed=True)} %, "
            f"{found.loc[metric, 'cases']:,} cases",
        }
        for metric in text.MAIN
        if metric in found.index
    ]


def scatters(errors: pandas.DataFrame) -> list[Figure]:
    """Simulated against published, a point per case, coloured by family."""
    families = sorted(set(errors["family"]))
    colours = {family: COLOURS[i % len(COLOURS)] for i, family in enumerate(families)}
    symbols = {family: ("circle", "diamond-open", "x")[i // len(COLOURS) % 3] for i, family in enumerate(families)}
    figures = []
    for number, metric in enumerate(metric for metric in SHOWN if metric in set(errors["metric"])):
        points = errors[errors["metric"] == metric]
        as_text = _as_text(points["unit"].iloc[0])
        both = np.concatenate([points["published"], points["simulated"]])
        axis = Axis(is_log=True, low=float(both.min()), high=float(both.max()))
        ends = axis.place(np.array([axis.low, axis.high]))
        data: list[dict[str, Any]] = [
            _line(ends, ends + shift, dash)
            for shift, dash in ((0, "solid"), (np.log10(1 + BAND), "dot"), (np.log10(1 - BAND), "dot"))
        ]
        for family, group in points.groupby("family"):
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": family,
                    "x": rounded(axis.place(group["published"].to_numpy()), 5),
                    "y": rounded(axis.place(group["simulated"].to_numpy()), 5),
                    "marker": {"color": colours[family], "symbol": symbols[family], "size": 6, "opacity": 0.65},
                    "text": [_hover(row, as_text) for row in group.to_dict("records")],
                    "hovertemplate": "%{text}<extra>" + family + "</extra>",
                }
            )
        layout = {
            "xaxis": axis.layout(as_text, 6) | {"title": {"text": "published"}},
            "yaxis": axis.layout(as_text, 7) | {"title": {"text": "simulated"}},
            "margin": {"l": 74, "r": 12, "t": 8, "b": 48},
        }
        summary = statistics.errors_by(points, "metric").iloc[0]
        bias = text.percent(summary["bias"], signed=True)
        caption = f"{summary['cases']:,} cases, MAPE {text.percent(summary['mape'])} %, bias {bias} %."
        legend = tuple(
            (
                family + {"circle": "", "diamond-open": " (diamonds)", "x": " (crosses)"}[symbols[family]],
                colours[family],
                "",
            )
            for family in sorted(set(points["family"]))
        )
        label = f"Scatter plot of {metric}, simulated against published: {caption}"
        figures.append(Figure(f"scatter_{number}", metric, caption, label, 380, data, layout, legend))
    return figures


def _as_text(unit: str) -> Callable[[float], str]:
    if unit == "B/s":
        return lambda value: f"{1e-9 * value:,.4g} GB/s"
    return quantities.short_seconds if unit == "s" else lambda value: f"{value:,.4g}/s"


def _line(x: np.ndarray, y: np.ndarray, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(x, 5),
        "y": rounded(y, 5),
        "hoverinfo": "skip",
        "line": {"color": "$c-grey", "width": 1.25, "dash": dash},
    }


def _hover(row: dict[str, Any], as_text: Callable[[float], str]) -> str:
    published, simulated = (as_text(float(f"{row[key]:.4g}")) for key in ("published", "simulated"))
    return (
        f"{row['case_id']}: {row['engine']}, {row['model']}, {row['gpu']}, {row['parallelism']}<br>"
        f"published {published}, simulated {simulated} ({100 * row['error']:+.0f} %)"
    )


def tables(outcomes: Sequence[Outcome], errors: pandas.DataFrame) -> list[dict[str, Any]]:
    """Every table of the terminal, and the nested one: title, header, rows of text, number of leading text columns."""
    figures = ("cases", "MAPE %", "median %", "p90 %", "bias %")

    def of(*columns: str, errors: pandas.DataFrame = errors) -> list[tuple[str, ...]]:
        return [
            (
                *(str(row[c]) for c in columns),
                f"{row['cases']:,}",
                *(text.percent(row[k]) for k in ("mape", "median", "p90")),
                text.percent(row["bias"], signed=True),
            )
            for row in statistics.errors_by(errors, *columns).to_dict("records")
        ]

    found = [{"title": "All cases", "header": ("metric", *figures), "rows": of("metric"), "text": 1}]
    sure = statistics.from_evidence(errors)
    if len(sure):
        found.append({"title": "Cases of which no setting is inferred", "header": ("metric", *figures), "rows": of("metric", errors=sure), "text": 1})
    for column in ("engine", "model", "parallelism", "phase", "family", "quality"):
        found.append(
            {"title": f"By {column}", "header": ("metric", column, *figures), "rows": of("metric", column), "text": 2}
        )
    nested = ("metric", "engine", "model", "parallelism", "phase")
    found.append(
        {
            "title": "By engine, model, parallelism and phase",
            "header": (*nested, *figures),
            "rows": of(*nested),
            "text": 5,
        }
    )
    found.append(
        {
            "title": "Order of parallelisms under equal load",
            "text": 2,
            "header": ("equal", "ranked by", "groups", "pairs", "Kendall tau", "best found %"),
            "rows": text.ranking_rows(outcomes),
        }
    )
    found.append(
        {
            "title": f"Published values inside the {100 * calibration.LEVEL:.0f} % intervals",
            "text": 1,
            "header": ("metric", "values", "withheld", "inside %", "median high / low"),
            "rows": text.covered_rows(errors),
        }
    )
    found.append(
        {
            "title": "Basis of simulated time, mean share in %",
            "text": 2,
            "header": ("engine", "GPU", "cases", *text.BASES),
            "rows": text.basis_rows(outcomes),
        }
    )
    return found
