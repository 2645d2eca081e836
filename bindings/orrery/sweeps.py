"""Many variants of a scenario simulated on all cores, or by any executor, into one table."""

from __future__ import annotations

import collections.abc
import concurrent.futures
import dataclasses
import itertools
import os
import re
from typing import Any

from . import simulation
from .frames import ResultFrame, Row, filled
from .requests import is_frame, scenario_error
from .scenarios import Scenario
from .simulation import Progress, Summary

Changes = dict[str, Any]
Varied = collections.abc.Mapping[str, collections.abc.Iterable[Any]] | collections.abc.Iterable[collections.abc.Mapping[str, Any]]

# Of the summary what says nothing about how good a plan is, or is no number.
_LEFT_OUT = ("seed", "step", "provenance", "intervals")
# Other numbers are measures, which JSON may write without a point.
_IS_COUNT = re.compile(r"(.*_)?(requests|tokens|preemptions|replicas|count|num_\w+|waiting_\w+)")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sweep(ResultFrame):
    """A row for each variant: its number `run`, what was varied, all figures of its summary, and `error`.

    Figures are named by their path in the summary (`ttft_s_p99`, `memory_per_gpu_weights_bytes`); `ttft_s_p99_low` and
    `ttft_s_p99_high` are the ends of its 80 % interval, where there is one. Where a combination
    is illegal or does not fit, `error` says why and there are no figures; else it is None.
    """

    _base: Scenario
    _changes: tuple[Changes, ...]

    def scenario(self, run: int) -> Scenario:
        """The scenario of the row whose `run` is this. Raises ScenarioError where the row has that as its error."""
        return self._base.replace(self._changes[run])


def sweep(
    scenario: Scenario,
    varied: Varied,
    *,
    executor: concurrent.futures.Executor | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Simulates every combination of values that some keys are varied over.

    `varied` has the values of each key, as `{"placement.tp": [1, 2, 4], "workload.poisson.requests_per_s": [10, 20]}`
    (a name with double underscores does as well); or it is a list of mappings from keys to values, one for each
    variant, as `[{"placement.tp": 8}, {"placement": None, "disaggregation": {...}}]`.

    Runs on `threads` threads (None: one for each core), or on any `executor` of concurrent.futures, also one of other
    processes or machines: scenarios and figures are pickled. Rows are in order of `varied` and do not depend on how
    they were run. `progress(done, total)` is called in runs.

    Raises ScenarioError for a key that no scenario has; a combination that is illegal is a row with `error`.
    """
    changes = _combinations(varied)
    names = tuple(dict.fromkeys(name for change in changes for name in change))
    if executor is not None:
        if threads is not None:
            raise ValueError("found both executor and threads; expected one of them")
        figures = _run_all(scenario, changes, executor, progress)
    else:
        if threads is not None and not 1 <= threads <= simulation.MOST_THREADS:
            raise ValueError(f"found threads={threads}; expected 1 to {simulation.MOST_THREADS:,}")
        with concurrent.futures.ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
            figures = _run_all(scenario, changes, pool, progress)
    errors = [row["error"] for row in figures]
    if errors and all(error is not None and "unknown key" in error for error in errors):
        raise scenario_error(errors[0])
    rows = [{"run": run, **{name: _label(change.get(name)) for name in names}, **row}
            for run, (change, row) in enumerate(zip(changes, figures, strict=True))]  # fmt: skip
    return Sweep(filled(rows), names, scenario, tuple(changes))


def figures_of(summary: Summary) -> Row:
    """Every number of a summary by its path, joined with underscores, ends of its 80 % intervals, and what limits the load."""
    row: Row = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{path}_{key}" if path else key, inner)
        elif isinstance(value, int | float):
            row[path] = value if isinstance(value, bool) or _IS_COUNT.fullmatch(path) else float(value)
        elif path == "load_limit":
            row[path] = value

    add("", {key: value for key, value in summary.items() if key not in _LEFT_OUT})
    for path, interval in summary["intervals"].items():
        if "low" in interval:
            name = path.replace(".", "_")
            row |= {f"{name}_low": interval["low"], f"{name}_high": interval["high"]}
    return row


def _combinations(varied: Varied) -> list[Changes]:
    if isinstance(varied, collections.abc.Mapping):
        names = [name.replace("__", ".") for name in varied]
        for name, values in varied.items():
            if isinstance(values, str | collections.abc.Mapping) or not isinstance(values, collections.abc.Iterable):
                raise ValueError(f"{name}: found {values!r}; expected a list of values")
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*map(list, varied.values()))]
    return [{name.replace("__", "."): value for name, value in change.items()} for change in varied]


def _run_all(
    scenario: Scenario, changes: list[Changes], executor: concurrent.futures.Executor, progress: Progress | None
) -> list[Row]:
    futures = [executor.submit(_run, scenario, change) for change in changes]
    try:
        for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
            future.result()
            if progress is not None:
                progress(done, len(futures))
        return [future.result() for future in futures]
    finally:  # of an error or Ctrl-C: what has not begun does not
        for future in futures:
            future.cancel()


def _run(scenario: Scenario, change: Changes) -> Row:
    try:
        result = simulation.simulate(scenario.replace(change))
    except ValueError as error:  # ScenarioError is one
        return {"error": str(error)}
    return {**figures_of(result.summary), "warnings": "; ".join(result.warnings), "error": None}


def _label(value: Any) -> Any:
    """What a table shows for a value: numbers and texts as they are."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_frame(value):
        return f"{len(value)} requests" if hasattr(value, "__len__") else "requests"
    return str(value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value)


__all__ = ["Sweep", "figures_of", "sweep"]
