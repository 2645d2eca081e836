"""Simulating scenarios, and what comes out: frozen results with tables and plots."""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

from . import _core, arrow, files, notebook, run_files
from .caching import cached_property
from .scenarios import Scenario, load, project_root

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

Progress = collections.abc.Callable[[int, int], None]

MOST_THREADS = 1024


def simulate(
    scenario: Scenario,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    spill: str | os.PathLike[str] | None = None,
) -> RunResult:
    """Serves the scenario's workload in simulated time.

    The result does not depend on `threads`. `progress(done, total)` is called now and then, in
    requests. Where `spill` names a directory, the steps lie in an unnamed file there instead of in
    memory, which millions of requests need. Raises ScenarioError.
    """
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"found threads={threads}; expected 1 to {MOST_THREADS:,}")
    return RunResult(_core.run_scenario(scenario, threads, progress, "" if spill is None else os.fspath(spill)), scenario)


def step(scenario: Scenario, batch: _core.Batch, *, level: str = "representative") -> TimelineTable:
    """Timeline of one engine step of `batch` on one replica.

    `level` is closed_form, heap, representative or all_ranks; closed_form gives the makespan of a
    plan that is one chain. Pickled, it is simulated again where it is unpickled.
    """
    return TimelineTable(_core.simulate_step(scenario, batch, level).timeline, (scenario, batch, level))


def step_result(scenario: Scenario, batch: _core.Batch) -> _core.StepResult:
    """One step with its plan at the level of a report: all ranks up to 16, one of each class beyond; heap without SimGrid."""
    most_shown = 16
    level = "all_ranks" if scenario.gpus_per_replica <= most_shown else "representative"
    return _core.simulate_step(scenario, batch, level if _core.has_simgrid() else "heap")


class Summary(collections.abc.Mapping[str, Any]):
    """Content of summary.json; its entries are attributes as well (`summary.output_tokens_per_s`).

    `intervals` holds 80 % intervals of means, medians and 99th percentiles (`RunResult.intervals`).
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._values)

    def _repr_html_(self) -> str:
        return notebook.summary_html(self)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})  # of one being copied there are none yet
        if name not in values:
            raise AttributeError(f"summary has no '{name}'; it has {', '.join(values)}")
        return values[name]

    def __iter__(self) -> collections.abc.Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Summary({self._values['requests']} requests, {self._values['output_tokens_per_s']:.0f} output tokens/s)"

    def to_dict(self) -> dict[str, Any]:
        """A copy as plain dicts and lists."""
        return copy.deepcopy(self._values)


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers; `columns()` has one NumPy array each, names carry the unit."""

    _read: collections.abc.Callable[[], dict[str, Any]]
    _name: str

    @cached_property
    def _columns(self) -> dict[str, Any]:
        columns = self._read()
        for values in columns.values():
            values.setflags(write=False)
        return columns

    def columns(self) -> dict[str, Any]:
        """One array per column; they cannot be written to."""
        return dict(self._columns)

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a data frame."""
        import pandas

        return pandas.DataFrame(self._columns, copy=True)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as an Arrow stream, which Polars, Arrow and DuckDB read; needs the package pyarrow."""
        return arrow.stream(self._columns, requested_schema)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> Any:
        """The array of a column; it cannot be written to."""
        return self._columns[name]

    def _repr_html_(self) -> str:
        shown = 10
        rest = f"<p>{len(self):,} rows</p>" if len(self) > shown else ""
        import pandas

        return str(pandas.DataFrame({name: values[:shown] for name, values in self._columns.items()}).to_html()) + rest

    def __reduce__(self) -> tuple[Any, ...]:
        return _table, (self.columns(), self._name)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        return f"Table({self._name}: {len(self)} rows, columns {', '.join(self._columns)})"


@dataclasses.dataclass(frozen=True, eq=False)
class TimelineTable:
    """When every op of a step ran."""

    _timeline: _core.Timeline
    _made_of: tuple[Scenario, _core.Batch, str] | None = None

    @property
    def makespan_s(self) -> float:
        return self._timeline.makespan_s

    def busy_s(self, rank: int = 0) -> dict[str, float]:
        """Seconds during which kernels, communication and host work run on `rank`."""
        return self._timeline.busy_s(rank)

    def exposed_communication_s(self, rank: int = 0) -> float:
        """Seconds during which communication runs on `rank` and no kernel does."""
        return self._timeline.exposed_communication_s(rank)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per span: op, copy, rank, stream, kind, basis, start_s, end_s."""
        import pandas

        return pandas.DataFrame(self._timeline.columns())

    def links_to_pandas(self) -> pandas.DataFrame:
        """One row per transfer on a link: link, op, bytes, start_s, end_s."""
        import pandas

        return pandas.DataFrame(self._timeline.link_columns())

    def to_perfetto(self) -> str:
        """Chrome trace event JSON; opens in Perfetto."""
        return self._timeline.to_perfetto()

    def plot(self) -> plotly.graph_objects.Figure:
        """Spans as bars, one row per rank and stream."""
        from . import plots

        return plots.timeline(self)

    def _repr_html_(self) -> str:
        longest = self.to_pandas().assign(time_us=lambda spans: 1e6 * (spans["end_s"] - spans["start_s"])).nlargest(10, "time_us")
        columns = ["op", "copy", "rank", "stream", "kind", "basis", "time_us"]
        return f"<p>{len(self):,} spans, {self.makespan_s * 1e3:.4g} ms; the longest:</p>" + str(longest[columns].to_html(index=False))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._made_of is None:
            raise TypeError("this timeline cannot be pickled; make it again from what it is of")
        scenario, batch, level = self._made_of
        return _step, (scenario, batch, level)

    def __len__(self) -> int:
        return len(self._timeline)

    def __repr__(self) -> str:
        return f"TimelineTable({len(self)} spans, {self.makespan_s * 1e3:.3f} ms)"


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """A simulated service.

    Pickled, it carries its scenario, summary and tables. The chosen step in detail and `write` simulate the scenario
    again where they are asked for after unpickling, and raise RuntimeError when that gives another summary, as it does
    where the version of Orrery or a table of kernels is another one.
    """

    _simulated: _core.RunResult | None  # None once unpickled
    _scenario: Scenario

    @cached_property
    def _result(self) -> _core.RunResult:
        if self._simulated is not None:
            return self._simulated
        again = _core.run_scenario(self._scenario)
        if again.summary_json() != self._summary_json:
            raise RuntimeError(
                f"{self._scenario.name}: simulated again it has another summary; the version of Orrery or a table of "
                "kernels here is not the one that this result was pickled with"
            )
        return again

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_scenario": self._scenario,
            "_summary_json": self._summary_json,
            "_communication": self._communication,
            "_requests": self.requests.columns(),
            "_steps": self.steps.columns(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(
            _simulated=None,
            _scenario=state["_scenario"],
            _summary_json=state["_summary_json"],
            _communication=state["_communication"],
            requests=_table(state["_requests"], "requests"),
            steps=_table(state["_steps"], "steps"),
        )

    @property
    def scenario(self) -> Scenario:
        return self._scenario

    @cached_property
    def _summary_json(self) -> str:
        return self._result.summary_json()

    @cached_property
    def summary(self) -> Summary:
        """Content of summary.json."""
        from .scorecard import intervals

        values = json.loads(self._summary_json)
        step = values["step"] | {"communication": self._communication}
        return Summary(values | {"step": step, "intervals": intervals.of_run(values)})

    @cached_property
    def _communication(self) -> dict[str, float]:
        """Of the first GPU in the chosen step."""
        from . import launches

        return launches.communication(TimelineTable(self._result.step.timeline)).to_dict()

    @cached_property
    def requests(self) -> Table:
        """One row per request."""
        return Table(self._result.service.request_columns, "requests")

    @cached_property
    def steps(self) -> Table:
        """One row per fast-forward of equal steps."""
        return Table(self._result.service.step_columns, "steps")

    @cached_property
    def timeline(self) -> TimelineTable:
        """The chosen step in detail."""
        step = self._result.step
        return TimelineTable(step.timeline, (self._scenario, step.batch, step.level))

    @property
    def plan_text(self) -> str:
        """Plan of the chosen step, one line per op."""
        return self._result.step.plan_text

    @property
    def intervals(self) -> dict[str, dict[str, Any]]:
        """80 % intervals by "ttft_s.mean", "tpot_s.p99", ...: {"low", "high", "basis"}, or {"withheld": why there is none}.

        In the unit of the figure. Made of how far published measurements lay from simulated ones, of groups that no fitted
        number has seen (docs/accuracy.md); `basis` counts them.
        """
        found: dict[str, dict[str, Any]] = self.summary["intervals"]
        return found

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of the result should know besides its numbers."""
        return tuple(self.summary["warnings"])

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain dicts."""
        return self.summary.to_dict()

    def plot_latencies(self) -> plotly.graph_objects.Figure:
        """Shares of requests below a TTFT, TPOT and end-to-end time."""
        from . import plots

        return plots.latencies(self)

    def plot_load(self) -> plotly.graph_objects.Figure:
        """Running and waiting sequences and KV blocks over time."""
        from . import plots

        return plots.load(self)

    def plot_step(self) -> plotly.graph_objects.Figure:
        """Where the chosen step's time goes, by op."""
        from . import plots

        return plots.step_shares(self)

    def write(
        self, directory: str | os.PathLike[str], *, force: bool = False, report: bool = True, parquet: bool = False
    ) -> pathlib.Path:
        """Writes the run directory, whole or not at all; with `parquet` the tables in that format too.

        Raises FileExistsError when `directory` exists, unless `force` is given and it is empty or an earlier run that
        holds nothing else; and when another process is writing it.
        """
        directory = pathlib.Path(directory)
        with files.publishing(directory, run_files.RUN, force=force) as folder:
            write_files(self, folder, report=report, parquet=parquet)
        return directory

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunResult):
            return NotImplemented
        return self.scenario == other.scenario and self._summary_json == other._summary_json

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        return notebook.result_html(self)

    def __repr__(self) -> str:
        return f"RunResult({self.scenario.name}: {self.summary!r})"


def _table(columns: dict[str, Any], name: str) -> Table:
    return Table(lambda: columns, name)


def _step(scenario: Scenario, batch: _core.Batch, level: str) -> TimelineTable:
    return step(scenario, batch, level=level)


def write_files(result: RunResult, folder: pathlib.Path, *, report: bool = True, parquet: bool = False) -> None:
    """Writes the files of a run into an empty directory; with `parquet` the tables in that format too."""
    result._result.write(str(folder))
    text = json.dumps(result.summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    files.write_text(folder / "summary.json", f"{text}\n")
    if parquet:
        from . import parquet as tables

        tables.write(folder)
    run_files.seal(folder)
    if report:
        from .report import render

        render(folder)


__all__ = ["RunResult", "Summary", "Table", "TimelineTable", "load", "project_root", "simulate", "step", "write_files"]
