"""Sets an engine profile's few host times by a benchmark's requests, and says what that is worth on requests it has not seen.

The times are those of the host and of the front end among scorecard.parameters; time of kernels is left alone, since the
tables measured it. One time after the other is moved as long as the loss falls by GAIN of where it began, first the one that
lowers it most, so that what one time explains is not spread over several. Loss: mean |log(simulated / measured)|, each
at most log 2, of TTFT plus that of TPOT, over the requests that are fitted; but not request by request: whether one comes just before a
step or just after it is chance on both sides, so requests of like prompts are compared from the fastest to the slowest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..emit import yaml_text
from ..finished_run import FinishedRun
from ..report import quantities, resolved_scenario
from ..simulation import project_root
from . import split
from .bench_files import Bench, Columns
from .replay import Replay, replay

METRICS = ("ttft_s", "tpot_s")
GAIN = 0.02  # of the first loss: less is not worth a time moved
ROUNDS = 6
_CAP = float(np.log(2))
_GROUPS = 8  # of like prompts
_SECTION = 0.381966  # of an interval: where golden sections fall
_SECTIONS = 8

Values = Mapping[str, float]  # seconds, by "host.scheduler_base"
CANDIDATES = {
    "host.scheduler_base": ("ms", 0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6),
    "host.scheduler_per_sequence": ("us", 0, 2, 5, 10, 15, 20, 30, 40, 50, 70, 100),
    "host.piece_launch": ("us", 10, 20, 30, 45, 60, 80, 100, 120, 150, 200),
    "host.eager_launch": ("us", 5, 10, 20, 30, 40, 50, 60, 80, 100, 120),
    "front_end.cold_start": ("ms", 0, 50, 100, 200, 300, 500, 1000, 2000),
    "front_end.per_request": ("ms", 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16),
    "front_end.per_prompt_token": ("us", 0, 0.5, 1, 2, 3, 4, 6, 8, 12, 16),
    "front_end.per_output_token": ("us", 0, 10, 20, 30, 40, 50, 60, 70, 80, 100),
    "front_end.stream_latency": ("ms", 0, 0.5, 1, 2, 4, 6, 8, 12, 16),
}  # a unit and numbers


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of requests: simulated / measured - 1."""

    requests: int
    loss: float
    metrics: dict[str, dict[str, float]]  # ttft_s, tpot_s: mean_absolute, of_mean, of_p50, of_p95, of_p99


@dataclasses.dataclass(frozen=True)
class Fitted:
    profile: str
    before: dict[str, float]
    after: dict[str, float]
    held_out: str  # which data the errors "held out" are of
    errors: dict[str, dict[str, Errors]]  # "fitted" and "held out", each "before" and "after"

    @property
    def moved(self) -> list[str]:
        return [path for path in self.before if self.before[path] != self.after[path]]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"moved": self.moved}


def fit(run: FinishedRun, bench: Bench, other: Bench | None) -> Fitted:
    """Fits to `bench`, or to every second of its requests where there is no other benchmark to hold out."""
    with _profiles(run) as folder, contextlib.ExitStack() as stack:
        replayed = stack.enter_context(replay(run, bench))
        counted = split.measured_part(run, bench)
        is_fitted = counted if other else counted & (np.arange(len(counted)) % 2 == 0)
        if is_fitted.sum() < 8:
            raise ValueError(f"{bench.path}: found {int(is_fitted.sum())} requests to fit to; expected 8 or more")
        profile, start = _start(folder, run)
        evaluate = _evaluator(folder, profile, replayed)
        best = _search(start, lambda values: _loss(evaluate(values), _requests(bench), is_fitted))
        errors = {"fitted": _before_and_after(evaluate, bench, is_fitted, start, best)}
        if other:
            again = _evaluator(folder, profile, stack.enter_context(replay(run, other)))
            errors["held out"] = _before_and_after(again, other, split.measured_part(run, other), start, best)
        else:
            errors["held out"] = _before_and_after(evaluate, bench, counted & ~is_fitted, start, best)
    name = f"all of {other.path}" if other else f"every second request of {bench.path}, which the fit did not see; machine and load are the same"
    return Fitted(profile, dict(start), dict(best), name, errors)


def profile_text(run: FinishedRun, fitted: Fitted, bench: Bench) -> str:
    """The whole profile with the fitted times, so that it stands by itself wherever it lies."""
    with _profiles(run) as folder:
        content = resolved_scenario.read(folder / f"{fitted.profile}.yaml")
        name = content.get("extends")
        while name:
            base = resolved_scenario.read(folder / f"{name}.yaml")
            name = base.get("extends")
            content = _merged(base, content)
    content.pop("extends", None)
    content["name"] = f"{fitted.profile}_fitted"
    for path in fitted.moved:
        section, _, key = path.partition(".")
        content[section][key] = {"value": _text(fitted.after[path]),
                                 "source": f"fitted to {bench.path.name} ({bench.tool}, {bench.num_requests} requests) by orrery compare; before {_text(fitted.before[path])}"}  # fmt: skip
    return yaml_text.block(_scalars(content))


def _merged(base: dict, over: dict) -> dict:
    result = dict(base)
    for key, value in over.items():
        is_section = isinstance(value, dict) and isinstance(base.get(key), dict) and "value" not in value
        result[key] = _merged(base[key], value) if is_section else value
    return result


def _scalars(value: Any) -> Any:
    """Numbers and truth values as such, which the reader keeps as text."""
    if isinstance(value, dict):
        return {key: _scalars(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_scalars(item) for item in value]
    if value in ("true", "false"):
        return value == "true"
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return value


@contextlib.contextmanager
def _profiles(run: FinishedRun) -> Iterator[pathlib.Path]:
    """A folder with the profiles of the project, and that of the run where it is one of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        given = pathlib.Path(str(run.scenario["engine"]["profile"]))
        for directory in (project_root() / "scenarios" / "engines", *([given.parent] if given.suffix == ".yaml" else [])):
            for file in directory.glob("*.yaml"):
                shutil.copy(file, folder)
        yield folder


def _start(folder: pathlib.Path, run: FinishedRun) -> tuple[str, dict[str, float]]:
    """The profile's name and its times."""
    name = pathlib.Path(str(run.scenario["engine"]["profile"])).name.removesuffix(".yaml")
    times: dict[str, float] = {}
    at: str | None = name
    while at:
        content = resolved_scenario.read(folder / f"{at}.yaml")
        for path in CANDIDATES:
            section, _, key = path.partition(".")
            held = content.get(section)
            if isinstance(held, dict) and key in held and path not in times:
                times[path] = quantities.parse_seconds(held[key]["value"] if isinstance(held[key], dict) else held[key])
        at = content.get("extends")
    return name, {path: times[path] for path in CANDIDATES if path in times}


def _evaluator(folder: pathlib.Path, profile: str, replayed: Replay) -> Callable[[Values], Columns]:
    @functools.cache
    def evaluate(items: tuple[tuple[str, float], ...]) -> Columns:
        sections: dict[str, dict[str, str]] = {}
        for path, seconds in items:
            section, _, key = path.partition(".")
            sections.setdefault(section, {})[key] = _text(seconds)
        file = folder / "being_fitted.yaml"
        file.write_text(yaml_text.block({"name": profile, "extends": profile, **sections}), encoding="utf-8")
        return replayed.simulate([f"engine.profile={file}"])

    return lambda values: evaluate(tuple(sorted(values.items())))


def _text(seconds: float) -> str:
    return f"{1e6 * seconds:.6g} us"


def _requests(bench: Bench) -> Columns:
    assert bench.requests is not None, "replays are of requests"
    return bench.requests


def _ratios(simulated: Columns, measured: Columns, chosen: np.ndarray, metric: str) -> np.ndarray:
    a, b = simulated[metric][chosen], measured[metric][chosen]
    is_known = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    return a[is_known] / b[is_known]


def _loss(simulated: Columns, measured: Columns, chosen: np.ndarray) -> float:
    total = 0.0
    for metric in METRICS:
        logs = np.concatenate([_ranked(simulated, measured, group, metric) for group in _alike(measured, chosen)])
        if len(logs):
            total += float(np.minimum(np.abs(logs), _CAP).mean())
    return total


def _alike(measured: Columns, chosen: np.ndarray) -> list[np.ndarray]:
    """Indices of the chosen requests in groups of like prompts."""
    indices = np.flatnonzero(chosen)
    order = np.argsort(measured["prompt_tokens"][indices], kind="stable")
    return np.array_split(indices[order], min(_GROUPS, max(len(indices) // 4, 1)))


def _ranked(simulated: Columns, measured: Columns, group: np.ndarray, metric: str) -> np.ndarray:
    """log(simulated / measured) of the fastest of both, the next, ..., of requests that have the figure on both sides."""
    a, b = simulated[metric][group], measured[metric][group]
    is_known = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    return np.log(np.sort(a[is_known]) / np.sort(b[is_known]))


def _search(start: Values, loss: Callable[[Values], float]) -> dict[str, float]:
    """Greedy over single times: each round moves the one whose candidates lower the loss most, and then refines it."""
    best, lowest = dict(start), loss(start)
    least = GAIN * lowest
    for _ in range(ROUNDS):
        tried = []
        for path in best:
            grid = _grid(path, best[path])
            at = _descend(grid, best[path], lambda seconds, p=path: loss({**best, p: seconds}))
            tried.append((loss({**best, path: grid[at]}), path, at))
        found, path, at = min(tried)
        if lowest - found < least:
            return best
        best[path] = _refined(_grid(path, best[path]), at, lambda seconds, p=path: loss({**best, p: seconds}))
        lowest = loss(best)
    return best


def _grid(path: str, current: float) -> list[float]:
    """Candidates, and the value itself."""
    unit, *numbers = CANDIDATES[path]
    return sorted({*(quantities.parse_seconds(f"{number:g} {unit}") for number in numbers), current})


def _descend(grid: Sequence[float], current: float, loss: Callable[[float], float]) -> int:
    """Where steps to either side no longer lower the loss."""
    at = grid.index(current)
    for step in (1, -1):
        while 0 <= at + step < len(grid) and loss(grid[at + step]) < loss(grid[at]):
            at += step
    return at


def _refined(grid: Sequence[float], at: int, loss: Callable[[float], float]) -> float:
    """Golden sections between the neighbours of the best candidate; whole nanoseconds."""
    low, high = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    left, right = (round(low + share * (high - low), 9) for share in (_SECTION, 1 - _SECTION))
    for _ in range(_SECTIONS):
        if loss(left) <= loss(right):
            high, right, left = right, left, round(low + _SECTION * (right - low), 9)
        else:
            low, left, right = left, right, round(high - _SECTION * (high - left), 9)
    return min((grid[at], left, right), key=loss)


def _before_and_after(evaluate: Callable[[Values], Columns], bench: Bench, chosen: np.ndarray, start: Values, best: Values) -> dict[str, Errors]:
    return {"before": _errors(evaluate(start), _requests(bench), chosen), "after": _errors(evaluate(best), _requests(bench), chosen)}


def _errors(simulated: Columns, measured: Columns, chosen: np.ndarray) -> Errors:
    metrics = {}
    for metric in METRICS:
        ratios = _ratios(simulated, measured, chosen, metric)
        if len(ratios):
            a, b = simulated[metric][chosen], measured[metric][chosen]
            is_known = np.isfinite(a) & np.isfinite(b) & (b > 0)
            a, b = a[is_known], b[is_known]
            metrics[metric] = {
                "mean_absolute": float(np.abs(ratios - 1).mean()),
                "of_mean": float(a.mean() / b.mean() - 1),
                "of_p50": float(np.median(a) / np.median(b) - 1),
                "of_p95": float(np.quantile(a, 0.95) / np.quantile(b, 0.95) - 1),
                "of_p99": float(np.quantile(a, 0.99) / np.quantile(b, 0.99) - 1),
            }
    return Errors(int(chosen.sum()), _loss(simulated, measured, chosen), metrics)


__all__ = ["Errors", "Fitted", "fit", "profile_text"]
