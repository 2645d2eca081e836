"""A run to work with: a run directory, or a scenario that is simulated now."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import run_files, simulation
from .report import columns, resolved_scenario, run_directory
from .report import steps as step_columns


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    name: str  # as the user named it
    scenario_file: pathlib.Path  # loads the scenario again
    overrides: tuple[str, ...]
    scenario: Mapping[str, Any]  # as resolved; every scalar is text
    summary: Mapping[str, Any]
    requests: Mapping[str, np.ndarray]  # columns of requests.csv, warm-up and drain included
    warmup_requests: int
    drain_requests: int
    steps: Callable[[], Mapping[str, np.ndarray]]  # reads columns of steps.csv, of all steps

    @property
    def measured(self) -> dict[str, np.ndarray]:
        """The requests after the warm-up and before the drain."""
        is_measured = run_directory.are_measured(self.requests["id"], self.warmup_requests, self.drain_requests)
        return {name: values[is_measured] for name, values in self.requests.items()}


def open_run(path: pathlib.Path, overrides: Sequence[str] = ()) -> FinishedRun:
    """The run in the directory `path`, or of the scenario file `path`, which is simulated.

    Raises ValueError naming what is missing, damaged or not as the run wrote it.
    """
    if path.is_dir():
        if overrides:
            raise ValueError(f"found --set with the run directory '{path}'; expected it with a scenario file, which is simulated anew")
        if run_files.is_sealed(path):
            run_files.check(path)
        read = run_directory.read(path)
        if not run_files.is_sealed(path):
            run_directory.check_counts(read)
        return FinishedRun(
            name=str(path),
            scenario_file=path / "scenario.yaml",
            overrides=(),
            scenario=read.scenario,
            summary=read.summary,
            requests=read.requests,
            warmup_requests=read.warmup_requests,
            drain_requests=read.drain_requests,
            steps=lambda: columns.packed(path / "steps.csv", step_columns.COLUMNS),
        )
    if not path.exists():
        raise ValueError(f"found no '{path}'; expected a directory that 'orrery run' wrote, or a scenario file")
    return simulate(path, overrides)


def simulate(path: pathlib.Path, overrides: Sequence[str] = ()) -> FinishedRun:
    """The run of a scenario file, in memory."""
    result = simulation.simulate(simulation.load(path, overrides=overrides))
    scenario = resolved_scenario.parse(result.scenario.to_yaml(), path)
    return FinishedRun(
        name=str(path),
        scenario_file=path,
        overrides=tuple(overrides),
        scenario=scenario,
        summary=result.to_dict(),
        requests=_arrays(result.requests),
        warmup_requests=run_directory.warmup_requests(scenario),
        drain_requests=run_directory.drain_requests(scenario),
        steps=lambda: _arrays(result.steps),
    )


def _arrays(table: simulation.Table) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in table.columns().items()}


__all__ = ["FinishedRun", "open_run", "simulate"]
