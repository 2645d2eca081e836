"""What fitting found, as tables, and where it is written: profiles, intervals, errors on left-out groups, docs/accuracy.md."""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from .. import files
from . import calibration, profiles, statistics
from .choice import Problem, Trust
from .intervals import Table
from .left_out import KINDS
from .parameters import PARAMETERS
from .text import percent

PAGE = pathlib.Path("docs/accuracy.md")
README = pathlib.Path("README.md")
IN_README = ("left out", "percentiles")
LEFT_OUT = pathlib.Path("data/serving/left_out.csv")
FITTED = pathlib.Path("data/serving/fitted.csv")
INTERVALS = pathlib.Path("data/serving/intervals.csv")
ENGINES = pathlib.Path("scenarios/engines")
ALL = "all"  # every group of a kind together
FEW = 10  # cases; groups of fewer are not called the worst
SHOWN = ("TPOT", "TTFT")
KIND_WORDS = {"family": "source family", "version": "engine version", "model": "model", "gpu": "GPU"}
FIGURES = ("cases", "mape", "median", "bias", "inside")
LEFT_OUT_COLUMNS = ("kind", "group", "metric", *FIGURES)
FITTED_COLUMNS = ("parameter", "unit", "prior", "held", *("profile", "value"))

Cells = tuple[str, ...]
Titled = tuple[str, Cells, list[Cells]]


@dataclasses.dataclass(frozen=True)
class Record:
    """The fitted numbers, and what they were judged with."""

    numbers: dict[str, dict[str, float]]  # by profile
    trust: Trust
    problem: Problem  # what they were chosen from
    shipped: pandas.DataFrame  # errors with these numbers
    left: pandas.DataFrame  # of every case with numbers that its group did not choose, once for each kind of group
    intervals: tuple[Table, pandas.DataFrame, pandas.DataFrame]  # see calibration.fit

    def left_out(self) -> pandas.DataFrame:
        """LEFT_OUT_COLUMNS for each group and for each kind of group as a whole."""
        return left_out_figures(self.intervals[1])

    def tables(self) -> list[Titled]:
        """Title, header and rows of what the terminal and the page show."""
        figures = self.left_out()
        return [summary_table(figures), summary_table(left_out_figures(self.intervals[1], contradictory=True), title="left out, all rows"),
                *left_out_tables(figures), shipped_table(self.shipped), percentile_table(self.shipped),
                contradiction_table(self.shipped)]  # fmt: skip

    def write(self, root: pathlib.Path) -> None:
        """Everything that is shipped."""
        for name, values in self.numbers.items():
            profiles.set_values(root / ENGINES, name, values)
        table, _, sizes = self.intervals
        calibration.write(root / INTERVALS, table, sizes)
        figures = self.left_out()
        files.write_text(root / LEFT_OUT, _csv(LEFT_OUT_COLUMNS, [_line(row) for row in figures.to_dict("records")]))
        files.write_text(root / FITTED, _csv(FITTED_COLUMNS, self._fitted()))
        tables = {table[0]: table for table in (parameter_table(self.numbers, self.trust), *self.tables())}
        write_page(root / PAGE, list(tables.values()))
        write_page(root / README, [tables[name] for name in IN_README])

    def _fitted(self) -> list[Cells]:
        return [
            (p.path, p.unit, f"{p.prior:g}", "yes" if i in self.trust.held else "no", name, p.text(values[p.path]).partition(" ")[0])
            for name, values in self.numbers.items() for i, p in enumerate(PARAMETERS)
        ]  # fmt: skip


def left_out_figures(judged: pandas.DataFrame, *, contradictory: bool = False) -> pandas.DataFrame:
    """Of rows of left-out groups with the column `inside`; rows that contradict themselves count only where they are asked for."""
    rows = judged if contradictory else judged[judged["contradiction"] == ""]
    both = pandas.concat([rows.assign(group=ALL), rows])
    found = statistics.errors_by(both, "kind", "group", "metric")
    inside = both.groupby(["kind", "group", "metric"])["inside"].mean().reset_index(name="inside")
    return found.merge(inside, on=["kind", "group", "metric"])[list(LEFT_OUT_COLUMNS)]


def left_out_tables(figures: pandas.DataFrame) -> list[Titled]:
    """One for each kind of group, with a line for each group, all of them first."""
    header = ("left out", *(f"{metric} {name}" for metric in SHOWN for name in ("cases", "MAPE %", "median %", "bias %", "inside %")))
    tables = []
    for kind in KINDS:
        of_kind = figures[figures["kind"] == kind].set_index(["group", "metric"])
        names = [ALL, *sorted({group for group, metric in of_kind.index if group != ALL and metric in SHOWN})]
        rows = [(name, *(cell for metric in SHOWN for cell in _figures(of_kind, name, metric))) for name in names]
        tables.append((f"by {kind}", header, rows))
    return tables


def summary_table(figures: pandas.DataFrame, title: str = "left out") -> Titled:
    """A line for each kind of group: all groups together, and the worst of those with FEW or more cases by name."""
    rows = []
    for kind in KINDS:
        of_kind = figures[figures["kind"] == kind]
        cells: list[str] = [f"one {KIND_WORDS[kind]}"]
        for metric in SHOWN:
            of_metric = of_kind[of_kind["metric"] == metric].set_index("group")
            groups = of_metric.drop(index=ALL)
            worst = groups[groups["cases"] >= FEW]["mape"].idxmax()
            total = of_metric.loc[ALL]
            cells += [f"{int(total['cases']):,}", percent(total["mape"]), percent(total["median"]), percent(total["inside"]),
                      f"{worst} ({percent(groups.loc[worst, 'mape'])})"]  # fmt: skip
        rows.append(tuple(cells))
    names = ("cases", "MAPE %", "median %", "inside %", "worst group (MAPE %)")
    return title, ("left out", *(f"{metric} {name}" for metric in SHOWN for name in names)), rows


def shipped_table(errors: pandas.DataFrame) -> Titled:
    """Errors of all cases with the shipped numbers, which saw a part of them; without contradictory rows, and with."""
    consistent = statistics.errors_by(errors[errors["contradiction"] == ""], "metric").set_index("metric")
    rows = []
    for row in statistics.errors_by(errors, "metric").to_dict("records"):
        of_metric = consistent.loc[row["metric"]] if row["metric"] in consistent.index else None
        rows.append((row["metric"], *(_errors(of_metric) if of_metric is not None else ("0", "", "", "")), *_errors(row)))
    names = ("cases", "MAPE %", "median %", "bias %")
    return "as shipped", ("metric", *names, *(f"all {name}" for name in names)), rows


def percentile_table(errors: pandas.DataFrame) -> Titled:
    """Medians and 99th percentiles, contradictory rows too, with what the sources are."""
    rows = errors[errors["metric"].str.contains(" p")]
    found = statistics.errors_by(rows, "metric")
    families = rows.groupby("metric")["family"].agg(lambda names: ", ".join(sorted(set(names))))
    cells = [(row["metric"], *_errors(row), families[row["metric"]]) for row in found.to_dict("records")]
    return "percentiles", ("metric", "cases", "MAPE %", "median %", "bias %", "sources"), cells


def contradiction_table(errors: pandas.DataFrame) -> Titled:
    """Runs of rows that contradict themselves or other sources, how far the simulator is from them, and why (of one row: the longest reason)."""
    rows = errors[errors["contradiction"] != ""]
    runs = ["family", "version", "model", "gpu"]
    cells = []
    for run, group in rows.groupby(runs, sort=True):
        of_metric = statistics.errors_by(group, "metric").set_index("metric")
        shown = [_errors(of_metric.loc[metric]) if metric in of_metric.index else ("",) * 4 for metric in SHOWN]
        figures = [cell for _, mape, _, bias in shown for cell in (mape, bias)]
        reason = max(sorted(set(group["contradiction"])), key=len)
        cells.append((*run, f"{group['case_id'].nunique():,}", *figures, reason))
    figures = [f"{metric} {name}" for metric in SHOWN for name in ("MAPE %", "bias %")]
    return "contradictions", ("source family", "engine version", "model", "GPU", "cases", *figures, "why"), cells


def _errors(row: Mapping[str, Any] | pandas.Series) -> Cells:
    return f"{int(row['cases']):,}", percent(row["mape"]), percent(row["median"]), percent(row["bias"], signed=True)


def parameter_table(numbers: dict[str, dict[str, float]], trust: Trust) -> Titled:
    """The fitted numbers by profile."""
    rows = [
        (p.path, p.text(p.prior) + _kept(i, trust), *(p.text(values[p.path]) for values in numbers.values()))
        for i, p in enumerate(PARAMETERS)
    ]
    return "parameters", ("parameter", "prior", *numbers), rows


def _kept(parameter: int, trust: Trust) -> str:
    return ", held" if parameter in trust.held else ", shared" if parameter in trust.shared else ""


def write_page(path: pathlib.Path, tables: Sequence[Titled]) -> None:
    """Puts each table between the lines `<!-- fit: TITLE -->` and `<!-- end -->` of a Markdown file.

    Throws ValueError where the file has no such lines.
    """
    text = path.read_text(encoding="utf-8")
    for title, header, rows in tables:
        begin = f"<!-- fit: {title} -->\n"
        found = re.search(re.escape(begin) + r"(.*?)<!-- end -->", text, re.DOTALL)
        if not found:
            raise ValueError(f"{path}: found no lines '{begin.strip()}' and '<!-- end -->'")
        text = text[: found.start()] + begin + markdown(header, rows) + "<!-- end -->" + text[found.end() :]
    files.write_text(path, text)


def markdown(header: Cells, rows: Sequence[Cells]) -> str:
    """A table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _figures(of_kind: pandas.DataFrame, group: str, metric: str) -> Cells:
    if (group, metric) not in of_kind.index:
        return ("",) * len(FIGURES)
    row = of_kind.loc[(group, metric)]
    inside = "" if pandas.isna(row["inside"]) else percent(row["inside"])
    return (f"{int(row['cases']):,}", percent(row["mape"]), percent(row["median"]), percent(row["bias"], signed=True), inside)


def _line(row: dict[str, object]) -> Cells:
    return tuple(f"{row[name]:.8g}" if name in FIGURES[1:] else str(row[name]) for name in LEFT_OUT_COLUMNS)


def _csv(header: Cells, rows: Sequence[Cells]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue()
