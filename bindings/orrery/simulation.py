"""Loading scenarios, simulating them, and what comes out: frozen results with tables and plots."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

from . import _core, files, run_files

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

Progress = collections.abc.Callable[[int, int], None]

MOST_THREADS = 1024


def project_root() -> pathlib.Path:
    """Directory with models/, topologies/, scenarios/ and data/: ORRERY_ROOT, an installed package's
    own copy, or the checkout that this package lies in."""
    if root := os.environ.get("ORRERY_ROOT"):
        return pathlib.Path(root)
    package = pathlib.Path(__file__).resolve().parent
    share = package / "share"
    return share if share.is_dir() else package.parents[1]


def load(path: str | os.PathLike[str], *, overrides: collections.abc.Iterable[str] = ()) -> _core.Scenario:
    """Scenario of a YAML file.

    `overrides` are "key.path=value" texts that replace values of the file. Raises ScenarioError with
    file, line and column, and ValueError for text that cannot be written in UTF-8.
    """
    for text in (os.fspath(path), *(overrides := list(overrides))):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{ascii(text)}: found bytes that are no UTF-8; expected text in UTF-8") from None
    return _core.load_scenario(os.fspath(path), str(project_root()), overrides)


def simulate(
    scenario: _core.Scenario,
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
    return RunResult(_core.run_scenario(scenario, threads, progress, "" if spill is None else os.fspath(spill)))


def step(scenario: _core.Scenario, batch: _core.Batch, *, level: str = "representative") -> TimelineTable:
    """Timeline of one engine step of `batch` on one replica.

    `level` is closed_form, heap, representative or all_ranks; closed_form gives the makespan of a
    plan that is one chain.
    """
    return TimelineTable(_core.simulate_step(scenario, batch, level).timeline)


class Summary(collections.abc.Mapping[str, Any]):
    """Content of summary.json; its entries are attributes as well (`summary.output_tokens_per_s`)."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

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
        return json.loads(json.dumps(self._values))


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers; `columns()` has one NumPy array each, names carry the unit."""

    _read: collections.abc.Callable[[], dict[str, Any]]
    _name: str

    @functools.cached_property
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

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        return f"Table({self._name}: {len(self)} rows, columns {', '.join(self._columns)})"


@dataclasses.dataclass(frozen=True, eq=False)
class TimelineTable:
    """When every op of a step ran."""

    _timeline: _core.Timeline

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

    def __len__(self) -> int:
        return len(self._timeline)

    def __repr__(self) -> str:
        return f"TimelineTable({len(self)} spans, {self.makespan_s * 1e3:.3f} ms)"


@dataclasses.dataclass(frozen=True, eq=False)
class RunResult:
    """A simulated service."""

    _result: _core.RunResult

    @property
    def scenario(self) -> _core.Scenario:
        return self._result.scenario

    @functools.cached_property
    def summary(self) -> Summary:
        """Content of summary.json."""
        return Summary(json.loads(self._result.summary_json()))

    @functools.cached_property
    def requests(self) -> Table:
        """One row per request."""
        return Table(self._result.service.request_columns, "requests")

    @functools.cached_property
    def steps(self) -> Table:
        """One row per fast-forward of equal steps."""
        return Table(self._result.service.step_columns, "steps")

    @functools.cached_property
    def timeline(self) -> TimelineTable:
        """The chosen step in detail."""
        return TimelineTable(self._result.step.timeline)

    @property
    def plan_text(self) -> str:
        """Plan of the chosen step, one line per op."""
        return self._result.step.plan_text

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._result.warnings)

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
        return self.scenario == other.scenario and self._result.summary_json() == other._result.summary_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RunResult({self.scenario.name}: {self.summary!r})"


def write_files(result: RunResult, folder: pathlib.Path, *, report: bool = True, parquet: bool = False) -> None:
    """Writes the files of a run into an empty directory; with `parquet` the tables in that format too."""
    result._result.write(str(folder))
    _ = result.summary  # raises when what was written there is no JSON
    if parquet:
        from . import parquet as tables

        tables.write(folder)
    run_files.seal(folder)
    if report:
        from .report import render

        render(folder)


__all__ = ["RunResult", "Summary", "Table", "TimelineTable", "load", "project_root", "simulate", "step", "write_files"]
