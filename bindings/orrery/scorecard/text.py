"""The scorecard as a terminal shows it."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas

from ..text_table import aligned
from . import calibration, explain, statistics
from .outcomes import Comparison, Outcome

# Metrics side by side in the tables by group; every metric stands in the first table.
MAIN = ("TTFT", "TPOT", "prefill time", "decode time", "output throughput")
FIGURES = ("cases", "MAPE %", "median %", "p90 %", "bias %")
BASES = ("measured", "interpolated", "roofline")
COVERED_GPUS = ("h100", "h200", "h800", "h20", "a100", "b200")


def render(outcomes: Sequence[Outcome]) -> str:
    """Every section, separated by blank lines."""
    errors = statistics.table(outcomes)
    parts = [coverage(outcomes)]
    if not errors.empty:
        parts += [all_cases(errors)]
        parts += [consistent(errors)]
        parts += [
            grouped(errors, column)
            for column in ("engine", "model", "parallelism", "phase", "family", "quality")
        ]
        parts += [
            _titled(
                f"Published values inside the {100 * calibration.LEVEL:.0f} % intervals around simulated ones",
                ("metric", "values", "withheld", "inside %", "median high / low"),
                covered_rows(errors),
                1,
            ),
            _titled(
                "Basis of simulated time, mean share in %", ("engine", "GPU", "cases", *BASES), basis_rows(outcomes), 2
            ),
            _titled(
                "Order of parallelisms under equal load",
                ("equal", "ranked by", "groups", "pairs", "Kendall tau", "best found %"),
                ranking_rows(outcomes),
                2,
            ),
            worst(outcomes),
        ]
    parts += [
        _titled("Cases that cannot be simulated, by reason", ("cases", "reason"), reasons(outcomes), 0, right=(0,))
    ]
    return "\n\n".join(part for part in parts if part)


def _titled(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    num_text: int,
    *,
    right: Collection[int] | None = None,
) -> str:
    """A table under its title, columns from `num_text` on flush right; nothing without rows."""
    columns = range(num_text, len(header)) if right is None else right
    return f"{title}\n{aligned(header, rows, right=columns)}" if rows else ""


def coverage(outcomes: Sequence[Outcome]) -> str:
    done = [outcome for outcome in outcomes if not outcome.reason]
    wanted = [o for o in outcomes if o.case.fields["structured"] == "yes" and o.case.fields["gpu_key"] in COVERED_GPUS]
    covered = sum(not outcome.reason for outcome in wanted)
    share = f" ({100 * covered / len(wanted):.1f} %)" if wanted else ""
    return (
        f"{len(done):,} of {len(outcomes):,} cases simulated, "
        f"{sum(len(o.comparisons) for o in done):,} metrics compared\n"
        f"structured cases on {', '.join(COVERED_GPUS)}: {covered:,} of {len(wanted):,}{share}"
    )


def percent(value: float, *, signed: bool = False) -> str:
    rounded = round(100 * value, 1) + 0.0  # no "-0.0"
    return f"{rounded:+.1f}" if signed else f"{rounded:.1f}"


def all_cases(errors: pandas.DataFrame) -> str:
    """Errors by metric, and beside them those of cases of which no setting is inferred (docs/accuracy.md)."""
    sure = statistics.errors_by(statistics.from_evidence(errors), "metric").set_index("metric")
    rows = [
        (row["metric"], *_figures(row), *((f"{sure.loc[row['metric'], 'cases']:,}", percent(sure.loc[row["metric"], "mape"]))
                                          if row["metric"] in sure.index else ("0", "")))
        for row in statistics.errors_by(errors, "metric").to_dict("records")
    ]  # fmt: skip
    header = ("metric", *FIGURES, "nothing inferred", "MAPE %")
    return f"Errors of all cases, and of those of which no setting is inferred\n{aligned(header, rows, right=range(1, len(header)))}"


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"{row['cases']:,}", *(percent(row[name]) for name in ("mape", "median", "p90")), percent(row["bias"], signed=True))


def full_table(table: pandas.DataFrame, *names: str) -> str:
    """Number of cases and the four error figures in percent, behind the grouping columns."""
    rows = [(*(str(row[name]) for name in names), *_figures(row)) for row in table.to_dict("records")]
    return aligned((*names, *FIGURES), rows, right=range(len(names), len(names) + len(FIGURES)))


def consistent(errors: pandas.DataFrame) -> str:
    """The figures with and without rows that contradict themselves or other sources; nothing where there are none."""
    rows = errors[errors["contradiction"] == ""]
    left_out = len(errors) - len(rows)
    if not left_out or rows.empty:
        return ""
    title = f"Errors without {left_out} metrics that are not consistent (docs/accuracy.md)"
    return f"{title}\n" + full_table(statistics.errors_by(rows, "metric"), "metric")


def grouped(errors: pandas.DataFrame, column: str) -> str:
    """MAPE and bias of the main metrics, one line per value of `column`."""
    table = statistics.errors_by(errors, column, "metric").set_index([column, "metric"])
    metrics = [metric for metric in MAIN if metric in set(errors["metric"])]
    rows = []
    for value in sorted(set(errors[column])):
        cells = [_cell(table, (value, metric)) for metric in metrics]
        if any(cells):
            rows.append((value, *cells))
    title = f"MAPE and bias in %, cases, by {column}\n"
    return title + aligned((column, *metrics), rows, right=range(1, len(metrics) + 1)) if rows else ""


def _cell(table: pandas.DataFrame, key: tuple[str, str]) -> str:
    if key not in table.index:
        return ""
    row = table.loc[key]
    return f"{percent(row['mape'])} {percent(row['bias'], signed=True):>7} {int(row['cases']):>5,}"


def basis_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Mean shares of simulated time, by engine and GPU kind."""
    shares: dict[tuple[str, str], list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        if not outcome.reason:
            shares[outcome.case.fields["engine"], outcome.case.fields["gpu_key"]].append(outcome)
    return [
        (*key, f"{len(group):,}", *(percent(sum(o.basis[name] for o in group) / len(group)) for name in BASES))
        for key, group in sorted(shares.items())
    ]


def covered_rows(errors: pandas.DataFrame) -> list[tuple[str, ...]]:
    """Share of published values inside the shipped intervals, whose bounds are of left-out groups."""
    return [
        (row["metric"], f"{row['cases']:,}", f"{row['withheld']:,}", *((percent(row["inside"]), f"{row['width']:.2f}") if row["cases"] else ("", "")))
        for row in calibration.coverage(errors).to_dict("records")
    ]


def ranking_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    return [
        (
            row["load"],
            row["measure"],
            f"{row['groups']:,}",
            f"{row['pairs']:,}",
            f"{row['tau']:.3f}",
            percent(row["best_found"]),
        )
        for row in statistics.rankings(outcomes).to_dict("records")
        if row["pairs"]
    ]


def number(comparison: Comparison, value: float) -> str:
    if comparison.unit == "B/s":
        return f"{1e-9 * value:.4g} GB/s"
    return f"{1e3 * value:.4g} ms" if comparison.unit == "s" else f"{value:.4g}/s"


def headline(finding: explain.Finding) -> str:
    """What was simulated and published, and of which case."""
    case, comparison = finding.outcome.case, finding.comparison
    names = ("engine", "engine_version", "model", "gpu_key")
    return (
        f"{case.case_id}: {comparison.metric} {number(comparison, comparison.simulated)} simulated, "
        f"{number(comparison, comparison.published)} published ({100 * comparison.error:+.0f} %); "
        f"{' '.join(filter(None, (case.fields[name] for name in names)))} {statistics.parallelism(finding.outcome)}, "
        f"{case.fields['isl']}/{case.fields['osl']}, {case.fields['load_kind']} {case.fields['load_value']}; "
        f"worst of {finding.num_alike}"
    )


def worst(outcomes: Sequence[Outcome]) -> str:
    lines = ["Worst case of each family, engine, model, GPU and metric"]
    for finding in explain.worst(outcomes):
        lines += [headline(finding), *(f"    {sentence}" for sentence in finding.sentences)]
    return "\n".join(lines)


def reasons(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """(number of cases, why they cannot be simulated), most first."""
    counts = collections.Counter(outcome.reason for outcome in outcomes if outcome.reason)
    return [(f"{count:,}", reason) for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
