"""How scenarios, summaries and results look in a notebook: HTML without style of its own."""

from __future__ import annotations

import collections.abc
import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scenarios import Scenario
    from .simulation import RunResult, Summary

_LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
_FIGURES = {
    "requests": "requests", "num_gpus": "GPUs", "output_tokens_per_s": "output tokens/s",
    "output_tokens_per_s_per_gpu": "output tokens/s/GPU", "requests_per_s": "requests/s", "goodput": "goodput, requests/s",
    "slo_attainment": "share within the SLO", "duration_s": "duration, s",
}  # fmt: skip


def table(rows: collections.abc.Iterable[collections.abc.Iterable[object]], *, head: collections.abc.Iterable[object] = ()) -> str:
    """An HTML table; the first cell of a row is its heading."""
    text = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in head)
    text = f"<thead><tr>{text}</tr></thead>" if text else ""
    for first, *rest in rows:
        cells = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in rest)
        text += f'<tr><th style="text-align: left">{html.escape(str(first))}</th>{cells}</tr>'
    return f"<table>{text}</table>"


def scenario_html(scenario: Scenario) -> str:
    """The question and what the scenario says, a row for each section."""
    rows = [(key, _flow(value)) for key, value in scenario._fields.items() if key != "question"]
    if scenario._requests is not None:
        rows = [(key, f"{len(scenario._requests):,} requests in memory" if key == "workload" else text) for key, text in rows]
    title = scenario.name + (f": {scenario.question}" if scenario.question else "")
    return f"<p><b>{html.escape(title)}</b></p>" + table(rows)


def summary_html(summary: Summary) -> str:
    """Latencies by percentile, and the main figures."""
    latencies = {name: summary[name] for name in _LATENCIES if isinstance(summary.get(name), dict)}
    quantiles = list(next(iter(latencies.values()), {}))
    rows = [(f"{_LATENCIES[name]}, ms", *(_milliseconds(values.get(key)) for key in quantiles)) for name, values in latencies.items()]
    figures = [(label, f"{summary[name]:,.4g}" if isinstance(summary[name], float) else f"{summary[name]:,}")
               for name, label in _FIGURES.items() if isinstance(summary.get(name), int | float)]  # fmt: skip
    load = summary.get("load") or {}
    overloaded = f"<p><b>Overloaded</b>: {html.escape(_limit(load))}</p>" if load.get("is_overloaded") else ""
    return overloaded + table(rows, head=("", *quantiles)) + table(figures)


def result_html(result: RunResult) -> str:
    """The scenario, its summary and what its reader is warned of."""
    warnings = "".join(f"<li>{html.escape(warning)}</li>" for warning in result.warnings)
    title = html.escape(result.scenario.question or result.scenario.name)
    return f"<p><b>{title}</b></p>" + summary_html(result.summary) + (f"<ul>{warnings}</ul>" if warnings else "")


def _limit(load: dict[str, Any]) -> str:
    held_up = f"; held up by {load['limit'].replace('_', ' ')}" if load["limit"] else ""
    return (
        f"{load['offered_requests_per_s']:.4g} requests/s offered, {load['served_requests_per_s']:.4g} served, "
        f"{load['waiting_at_last_arrival']:,} waiting at the last arrival{held_up}"
    )


def _milliseconds(value: Any) -> str:
    return "" if value is None else f"{value * 1e3:,.4g}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {{{_flow(inner)}}}" if isinstance(inner, dict) else f"{key}: {_flow(inner)}" for key, inner in value.items())
    return str(value)


__all__ = ["result_html", "scenario_html", "summary_html", "table"]
