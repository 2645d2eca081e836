"""Runs a search: what it asks for is looked up in the store or run, here or on an executor, and told to it.

The seam to many machines is concurrent.futures.Executor. A task is (question, jobs); a worker builds the space once and keeps
its models. Which machine did a job, and when, changes nothing: the search decides by scores alone, and waits for all jobs of
a round.
"""

from __future__ import annotations

import collections.abc
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import time
from typing import Any

from .. import _core
from ..caching import cached_property
from ..report import resolved_scenario
from . import plan_words
from .question import Question
from .store import Memory, Store

ESTIMATE, SHORT, FULL = 0, 1, 2
FIDELITIES = ("estimate", "short", "full")
Job = tuple[int, int, float]  # candidate, fidelity, load factor
_TASKS_PER_WORKER = 4  # of a round: small enough that no worker waits long for the last


@dataclasses.dataclass
class Progress:
    """How far a search is. `best` is the assignments of the best plan so far."""

    phase: str
    done: int
    total: int
    rate_per_s: float
    best: str = ""


Watch = collections.abc.Callable[[Progress], None]


@dataclasses.dataclass(frozen=True)
class Exploration:
    """A finished search. `outcomes` has the longest run of each candidate that was simulated, `estimates` one of each."""

    question: Question
    space: _core.Space
    is_open: bool
    estimates: list[dict[str, Any]]
    outcomes: dict[int, dict[str, Any]]
    ranking: list[int]  # candidates that meet the SLO, best first
    misses: list[int]  # simulated ones that do not, nearest first
    equals: dict[int, int]  # candidates that do what a simulated one does, and which
    num_simulated: dict[str, int]  # short and full runs
    num_resumed: int
    wall_s: float
    runner: Runner

    @cached_property
    def columns(self) -> dict[str, Any]:
        """One array per column of the candidates."""
        return self.space.columns()

    @cached_property
    def costs(self) -> dict[str, float]:
        """What owners give of their costs: usd_per_gpu_hour, usd_per_kwh, pue."""
        return {key: float(value) for key, value in (self._resolved(0).get("cost") or {}).items()}

    @cached_property
    def own_placement(self) -> dict[str, str]:
        """The placement of the plans where prefill and decode share GPUs: keys that the search varies are those of one of them."""
        whole = [i for i, prefill in enumerate(self.columns["prefill_replicas"]) if prefill == 0]
        return {key: str(value) for key, value in (self._resolved(whole[0]).get("placement") or {}).items()} if whole else {}

    def _resolved(self, candidate: int) -> dict[str, Any]:
        return resolved_scenario.parse(self.space.scenario(candidate).to_yaml(), pathlib.Path("scenario.yaml"))

    def assignments(self, candidate: int) -> list[str]:
        return self.space.assignments(candidate)

    def words(self, candidate: int, *, without_replicas: bool = False) -> str:
        """What a plan is, or one replica of it."""
        assignments = [a for a in self.assignments(candidate) if not (without_replicas and ".replicas=" in a)]
        said = plan_words.words(assignments, self.own_placement)
        return said.replace("1 × ", "") if without_replicas else said

    def best_among(self, members: collections.abc.Collection[int]) -> list[int]:
        """Those of `members` that meet the SLO, best first, as a search of them alone finds them; what was simulated is not again."""
        prospects = [_prospect(estimate) for estimate in self.estimates]
        alone = [prospect if i in members else (True, *prospect[1:]) for i, prospect in enumerate(prospects)]
        search = _searched(self.space, alone, self.is_open, self.runner, self.outcomes, self.num_simulated)
        for other, simulated in search.equals().items():
            self.equals.setdefault(other, simulated)
        return search.ranking()


class Runner:
    """Runs jobs of one question and keeps what they gave."""

    def __init__(self, question: Question, space: _core.Space, store: Store | Memory, *, threads: int,
                 executor: concurrent.futures.Executor | None, watch: Watch | None) -> None:  # fmt: skip
        self.question, self.space, self.store = question, space, store
        self.evaluator = _core.Evaluator()
        self.threads, self.executor, self.watch = threads, executor, watch
        self.best = ""
        self.num_run = 0
        self._began = time.monotonic()

    def run(self, jobs: list[Job], *, phase: str) -> list[dict[str, Any]]:
        """Outcomes of jobs, in their order."""
        keys = [_key(job) for job in jobs]
        found = [self.store.get(key) for key in keys]
        missing = [i for i, text in enumerate(found) if text is None]
        done = len(jobs) - len(missing)
        self._show(phase, done, len(jobs))

        def keep(i: int, text: str) -> None:
            nonlocal done
            found[missing[i]] = text
            if jobs[missing[i]][1] != ESTIMATE:
                self.store.put(keys[missing[i]], text)
            done += 1
            self.num_run += 1
            self._show(phase, done, len(jobs))

        self._run_missing([jobs[i] for i in missing], keep)
        self.store.put_all([(keys[i], text) for i in missing if jobs[i][1] == ESTIMATE and (text := found[i]) is not None])
        return [json.loads(text) for text in found if text is not None]

    def _run_missing(self, jobs: list[Job], keep: collections.abc.Callable[[int, str], None]) -> None:
        if not jobs:
            return
        if self.executor is None:
            _run_here(self.evaluator, self.space, jobs, self.threads, keep)
            return
        size = max(1, -(-len(jobs) // (_TASKS_PER_WORKER * _num_workers(self.executor, self.threads))))
        parts = [range(first, min(first + size, len(jobs))) for first in range(0, len(jobs), size)]
        futures = {self.executor.submit(run_jobs, self.question, [jobs[i] for i in part]): part for part in parts}
        try:
            for future in concurrent.futures.as_completed(futures):
                for i, text in zip(futures[future], future.result()):
                    keep(i, text)
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _show(self, phase: str, done: int, total: int) -> None:
        if self.watch:
            elapsed = max(time.monotonic() - self._began, 1e-9)
            self.watch(Progress(phase, done, total, self.num_run / elapsed, self.best))


def _num_workers(executor: concurrent.futures.Executor, otherwise: int) -> int:
    """That an executor says it has: of the standard library, or of a Dask client."""
    if of_library := getattr(executor, "_max_workers", None):
        return int(of_library)
    client = getattr(executor, "_client", None)
    return (sum(client.nthreads().values()) if client is not None else 0) or otherwise


def _key(job: Job) -> str:
    candidate, fidelity, load = job
    return f"{candidate} {FIDELITIES[fidelity]} {load!r}"


def _run_here(evaluator: _core.Evaluator, space: _core.Space, jobs: list[Job], threads: int,
              keep: collections.abc.Callable[[int, str], None]) -> None:  # fmt: skip
    estimates = [i for i, job in enumerate(jobs) if job[1] == ESTIMATE]
    services = [i for i, job in enumerate(jobs) if job[1] != ESTIMATE]
    if estimates:
        evaluator.estimate(space, [jobs[i][0] for i in estimates], threads, lambda i, text: keep(estimates[i], text))
    if services:
        evaluator.serve(space, [jobs[i] for i in services], threads, lambda i, text: keep(services[i], text))


@functools.lru_cache(maxsize=4)
def _worker(question: Question) -> tuple[_core.Space, _core.Evaluator]:
    return question.space(), _core.Evaluator()


def run_jobs(question: Question, jobs: list[Job]) -> list[str]:
    """What a worker of an executor does: the outcomes of jobs as JSON, in their order."""
    space, evaluator = _worker(question)
    found: dict[int, str] = {}
    _run_here(evaluator, space, jobs, 1, found.__setitem__)
    return [found[i] for i in range(len(jobs))]


def explore(question: Question, *, threads: int | None = None, executor: concurrent.futures.Executor | None = None,
            store: Store | Memory | None = None, watch: Watch | None = None, space: _core.Space | None = None) -> Exploration:  # fmt: skip
    """Searches the question's space. The same question gives the same answer, with any number of threads or workers.

    `space` is the question's where the caller has it. Raises ScenarioError for a question that is none, and ValueError where no
    plan of the space is legal.
    """
    began = time.monotonic()
    store = store if store is not None else Memory()
    threads = threads or os.cpu_count() or 1
    space = space if space is not None else legal_space(question, threads)
    runner = Runner(question, space, store, threads=threads, executor=executor, watch=watch)
    shapes = space.columns()["shape"]
    order = sorted(range(len(space)), key=lambda i: int(shapes[i]))  # those of a shape share its step times
    in_order = runner.run([(i, ESTIMATE, 1.0) for i in order], phase="estimates")
    estimates = [estimate for _, estimate in sorted(zip(order, in_order), key=lambda pair: pair[0])]
    is_open = any(estimate["offered_requests_per_s"] > 0 for estimate in estimates)
    outcomes: dict[int, dict[str, Any]] = {}
    counts = dict.fromkeys(FIDELITIES[1:], 0)
    search = _searched(space, [_prospect(estimate) for estimate in estimates], is_open, runner, outcomes, counts)
    return Exploration(question, space, is_open, estimates, outcomes, search.ranking(), search.nearest_misses(), search.equals(), counts,
                       store.num_found, time.monotonic() - began, runner)  # fmt: skip


def _searched(space: _core.Space, prospects: list[tuple[bool, float, float]], is_open: bool, runner: Runner,
              outcomes: dict[int, dict[str, Any]], counts: dict[str, int]) -> _core.Search:  # fmt: skip
    """A finished search; what it simulated that `outcomes` had no run as long of is added there and counted."""
    search = _core.Search(space, prospects, is_open)
    shapes = space.columns()["shape"]
    while jobs := search.next():
        jobs.sort(key=lambda job: (int(shapes[job[0]]), job[0]))
        fidelity = jobs[0][1]
        results = runner.run([(candidate, fidelity, 1.0) for candidate, fidelity in jobs], phase=FIDELITIES[fidelity])
        for (candidate, _), outcome in zip(jobs, results):
            if candidate not in outcomes or (fidelity == FULL and outcomes[candidate]["fidelity"] != FIDELITIES[FULL]):
                counts[FIDELITIES[fidelity]] += 1
                outcomes[candidate] = outcome
            search.take(candidate, fidelity, *_score(outcome))
        if ranking := search.ranking():
            runner.best = " ".join(space.assignments(ranking[0]))
    return search


def legal_space(question: Question, threads: int) -> _core.Space:
    """The question's plans, of which there is one at least. Raises ScenarioError, ValueError."""
    space = question.space(threads)
    if len(space) == 0:
        raise ValueError(_empty(space))
    return space


def _prospect(estimate: dict[str, Any]) -> tuple[bool, float, float]:
    utilisation = estimate["utilisation"]
    return bool(estimate["impossible"]), float("inf") if utilisation is None else utilisation, estimate["output_tokens_per_s"] or 0.0


def _score(outcome: dict[str, Any]) -> tuple[bool, bool, float, float, bool, tuple[int, int, int] | None]:
    if outcome["error"]:
        return False, True, 0.0, 0.0, True, None
    headroom = float("inf") if outcome["headroom"] is None else outcome["headroom"]
    use = outcome["peak_use"]
    peak = (use["sequences"], use["prompt_tokens"], use["longest"]) if use else None
    return outcome["meets"], outcome["load"]["is_overloaded"], headroom, outcome["output_tokens_per_s"], outcome["is_lost"], peak


def _empty(space: _core.Space) -> str:
    reasons = [f"  {count:,} x {reason}\n      such as {example}" for reason, count, example in space.left_out()]
    return f"found no legal plan among {space.num_combinations:,} combinations:\n" + "\n".join(reasons)
