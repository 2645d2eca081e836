"""Executed steps of a service, each beside what the simulator takes for the same batch, by class of batch.

Latencies of a service err by their steps, and by when requests meet; here each executed step is priced by itself, with what
its replica had done before (clock under the power limit, numbers of rows that the host knew). Prices are those of the
checkout that compares.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from .. import _core, simulation
from .directory import Case, Service

DECODES = (8, 32, 64, 128)
ROWS = (512, 1024, 2048, 4096)


@dataclasses.dataclass(frozen=True)
class ExecutedStep:
    replica: int
    start_s: float
    duration_s: float  # of one of num_steps, less what it waited for KV blocks from a tier
    num_steps: int
    prefill: Sequence[tuple[int, int, bool]]  # tokens, tokens before them, whether they end their prompt
    num_decodes: int
    decode_context: int

    @property
    def rows(self) -> int:
        return self.num_decodes + sum(query for query, _, _ in self.prefill)


def are_measured(service: Service, ids: Set[float], replicas: Sequence[float], starts_s: Sequence[float]) -> np.ndarray:
    """Which of the steps that begin on `replicas` at `starts_s` begin while a request of `ids` is in the engine there."""
    requests = service.requests
    stays: dict[float, list[tuple[float, float]]] = collections.defaultdict(list)
    for i in [i for i, request in enumerate(requests["id"]) if request in ids]:
        begin, end = requests["first_scheduled_s"][i], requests["finish_s"][i]
        if "decode_replica" in requests and requests["decode_replica"][i] >= 0:
            stays[requests["decode_replica"][i]].append((requests["decode_start_s"][i], end))
            end = requests["prefill_end_s"][i]
        stays[requests["replica"][i]].append((begin, end))
    found = np.zeros(len(starts_s), dtype=bool)
    of_step, at = np.asarray(replicas), np.asarray(starts_s)
    for replica, intervals in stays.items():
        begins, ends = np.sort(np.array(intervals), axis=0).T
        here = of_step == replica
        found[here] = np.searchsorted(begins, at[here], side="right") > np.searchsorted(ends, at[here], side="right")
    return found


def by_class(case: Case, ids: Set[float]) -> list[dict[str, Any]]:
    """Measured and predicted mean time of each class of steps, and of all; empty where no step can be priced.

    Of the steps that compute tokens of the requests `ids`; those before are priced too, since what they did counts.
    """
    if case.measured_service is None:
        return []
    steps = list(executed_steps(case.measured_service))
    if not steps:
        return []
    scenario = simulation.load(case.directory / "scenario.yaml")
    try:
        predicted = _core.replayed_durations(
            scenario,
            replicas=[step.replica for step in steps],
            start_s=[step.start_s for step in steps],
            batches=[_batch(step) for step in steps],
        )
    except ValueError as error:
        raise ValueError(f"{case.directory / 'executed' / 'serve_steps.csv'}: a step cannot be priced: {error}") from None
    groups: dict[tuple[int, str], list[tuple[float, float]]] = collections.defaultdict(list)
    is_measured = are_measured(case.measured_service, ids, [step.replica for step in steps], [step.start_s for step in steps])
    for step, price, counts in zip(steps, predicted, is_measured, strict=True):
        if not counts:
            continue
        groups[class_of(step)] += [(price, step.duration_s)] * step.num_steps
    everything = [pair for group in groups.values() for pair in group]
    if not everything:
        return []
    measured_s = sum(measured for _, measured in everything)
    return [_row(name, group, measured_s) for (_, name), group in sorted(groups.items())] + [
        _row("all", everything, measured_s)
    ]


def class_of(step: ExecutedStep) -> tuple[int, str]:
    """Place and name: decodes by their number, steps with prompts by their rows and by whether decodes are beside."""
    if not step.prefill:
        place, text = _bracket(step.num_decodes, DECODES)
        return place, f"{text} decodes"
    place, text = _bracket(step.rows, ROWS)
    beside = step.num_decodes > 0
    return 10 * (place + 1) + beside, f"prompts, {text} rows, {'beside decodes' if beside else 'alone'}"


def executed_steps(service: Service) -> Iterator[ExecutedStep]:
    """The steps in order of time. Which prompts a step computed follows from the order in which its replica took them.

    From where a replica's steps do not follow from its requests (it preempted one, or serving was stopped) they are left out.
    """
    steps = service.steps
    prompts = {replica: _Prompts(service.requests, replica) for replica in set(steps["replica"])}
    for i in sorted(range(len(steps["start_s"])), key=lambda i: (steps["start_s"][i], steps["replica"][i])):
        replica = steps["replica"][i]
        prefill = prompts[replica].take(int(steps["num_prefills"][i]), int(steps["prefill_tokens"][i]))
        if prefill is None:
            continue
        count = int(steps["num_steps"][i])
        num_decodes = int(steps["num_decodes"][i])
        yield ExecutedStep(
            replica=int(replica),
            start_s=steps["start_s"][i],
            duration_s=(steps["duration_s"][i] - steps["waited_s"][i]) / count,
            num_steps=count,
            prefill=prefill,
            num_decodes=num_decodes,
            decode_context=int(steps["decode_context"][i]) + num_decodes * (count - 1) // 2,
        )


class _Prompts:
    """The prompts of a replica in the order in which they were scheduled."""

    def __init__(self, requests: Mapping[str, Sequence[float]], replica: float) -> None:
        own = [i for i, of in enumerate(requests["replica"]) if of == replica]
        own.sort(key=lambda i: (requests["first_scheduled_s"][i], requests["first_token_s"][i], requests["id"][i]))
        self._ahead = collections.deque((int(requests["cached_tokens"][i]), int(requests["prompt_tokens"][i])) for i in own)
        self._is_known = all(requests["num_preemptions"][i] == 0 for i in own)

    def take(self, num_chunks: int, tokens: int) -> list[tuple[int, int, bool]] | None:
        """The next chunks, `tokens` in all: only the last may leave some of its prompt. None where they are not known."""
        chunks: list[tuple[int, int, bool]] = []
        while self._is_known and len(chunks) < num_chunks and self._ahead:
            done, prompt = self._ahead.popleft()
            query = min(prompt - done, tokens)
            tokens -= query
            chunks.append((query, done, done + query == prompt))
            if done + query < prompt:
                self._ahead.appendleft((done + query, prompt))
        self._is_known = self._is_known and len(chunks) == num_chunks and tokens == 0
        return chunks if self._is_known else None


def _bracket(value: int, limits: Sequence[int]) -> tuple[int, str]:
    """Number and text of the interval that holds `value`: "9 to 32", "more than 128"."""
    low = 1
    for place, limit in enumerate(limits):
        if value <= limit:
            return place, f"{low:,} to {limit:,}"
        low = limit + 1
    return len(limits), f"more than {limits[-1]:,}"


def _batch(step: ExecutedStep) -> _core.Batch:
    chunks = [_core.PrefillChunk(query, context, ends) for query, context, ends in step.prefill]
    return _core.Batch(prefill=chunks, num_decodes=step.num_decodes, decode_context=step.decode_context)


def _row(name: str, pairs: Sequence[tuple[float, float]], all_s: float) -> dict[str, Any]:
    predicted = sum(price for price, _ in pairs)
    measured = sum(time for _, time in pairs)
    return {
        "class": name,
        "steps": len(pairs),
        "share": measured / all_s,
        "predicted_s": predicted / len(pairs),
        "measured_s": measured / len(pairs),
        "error": predicted / measured - 1,
    }


__all__ = ["ExecutedStep", "are_measured", "by_class", "class_of", "executed_steps"]
