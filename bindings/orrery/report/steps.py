"""The steps of a run, summed up as they are read: there may be more of them than fit into memory."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from . import columns

COLUMNS = (
    "replica",
    "start_s",
    "duration_s",
    "num_steps",
    "prefill_tokens",
    "num_prefills",
    "num_decodes",
    "decode_context",
    "num_waiting",
    "kv_blocks_used",
)
NUM_BINS = 240  # of the run's time: a third of a plot's pixels


def bin_amounts(
    edges: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    amount: np.ndarray,
    row: np.ndarray | None = None,
    num_rows: int = 1,
) -> np.ndarray:
    """Amounts, each spread evenly over its [start, end), summed into the bins between `edges`: [bins], or
    [num_rows, bins] where each amount has a `row`.

    Conserves the sum when the edges cover all intervals.
    """
    num_bins = len(edges) - 1
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, num_bins - 1)
    last = np.clip(np.searchsorted(edges, end, side="left") - 1, first, num_bins - 1)
    offset = np.zeros(len(first), dtype=np.int64) if row is None else row.astype(np.int64) * num_bins
    is_within = first == last
    size = num_rows * num_bins

    def summed(bins: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        return np.bincount(bins, weights=amounts, minlength=size).astype(float)  # whole numbers where there are none

    found = summed((offset + first)[is_within], amount[is_within])
    across = ~is_within
    if across.any():
        offset, first, last, start, end = offset[across], first[across], last[across], start[across], end[across]
        rate = amount[across] / (end - start)
        found += summed(offset + first, rate * (edges[first + 1] - start))
        found += summed(offset + last, rate * (end - edges[last]))
        # The bins between are full; where they begin and end, the sum of rates changes.
        changes = summed(offset + first + 1, rate) - summed(offset + last, rate)
        found += (np.cumsum(changes.reshape(num_rows, num_bins), axis=1) * np.diff(edges)).ravel()
    return found if row is None else found.reshape(num_rows, num_bins)


@dataclasses.dataclass(frozen=True)
class Steps:
    """Sums over bins of the run's time, and the time of every fast-forward of steps."""

    edges: np.ndarray  # [bins + 1] seconds
    running: np.ndarray  # [bins] sequences in a step x seconds, all replicas
    waiting: np.ndarray  # [bins] likewise
    decodes: np.ndarray  # [bins] tokens
    prompt_tokens: np.ndarray  # [bins]
    kv: np.ndarray  # [replicas, bins] blocks x seconds
    mean_s: np.ndarray  # [fast-forwards] time of one step
    num_steps: np.ndarray  # [fast-forwards]
    has_prefill: np.ndarray  # [fast-forwards]


def read(path: pathlib.Path, *, begin_s: float, end_s: float, num_replicas: int) -> Steps:
    """Of a run over [begin_s, end_s], or longer where its steps are, with that many replicas or more.

    Throws ValueError naming the file and what it lacks.
    """
    steps, begin, end, replicas = _read(path, begin_s, end_s, num_replicas)
    if (begin, end, replicas) != (begin_s, end_s, num_replicas):
        steps, *_ = _read(path, begin, end, replicas)
    return steps


def _read(path: pathlib.Path, begin: float, end: float, num_replicas: int) -> tuple[Steps, float, float, int]:
    """The steps over what is given, and the time and the number of replicas that they have in fact."""
    edges = np.linspace(begin, max(end, begin + 1e-9), NUM_BINS + 1)
    sums = [np.zeros(NUM_BINS) for _ in range(4)]
    kv = np.zeros((num_replicas, NUM_BINS))
    before = _Before(num_replicas)
    times: list[tuple[np.ndarray, ...]] = []
    found = (begin, end, num_replicas)
    for part in columns.parts(path, COLUMNS):
        start, duration, weight = part["start_s"], part["duration_s"], part["num_steps"]
        stop = start + duration
        found = (
            min(found[0], float(start.min())),
            max(found[1], float(stop.max())),
            max(found[2], int(part["replica"].max()) + 1),
        )
        is_covered = found == (begin, end, num_replicas)
        times.append((duration / np.maximum(weight, 1), columns.pack(weight), part["num_prefills"] > 0))
        if not is_covered:
            continue  # it is read again
        for total, amount in zip(
            sums,
            (
                (part["num_prefills"] + part["num_decodes"]) * duration,
                part["num_waiting"] * duration,
                part["num_decodes"] * weight,
                part["prefill_tokens"] * weight,
            ),
            strict=True,
        ):
            total += bin_amounts(edges, start, stop, amount)
        before.add_blocks(kv, edges, part["replica"].astype(np.int64), start, stop, part["kv_blocks_used"])
    if not times:
        raise columns.no_rows(path)
    mean_s, num_steps, has_prefill = (np.concatenate(of) for of in zip(*times))
    return Steps(edges, *sums, kv, mean_s, num_steps, has_prefill), *found


class _Before:
    """What the step before, of each replica, left behind."""

    def __init__(self, num_replicas: int) -> None:
        self._blocks = np.zeros(num_replicas)
        self._stop = np.full(num_replicas, np.inf)

    def add_blocks(
        self,
        kv: np.ndarray,
        edges: np.ndarray,
        replica: np.ndarray,
        start: np.ndarray,
        stop: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """Adds blocks in use x seconds. `after`, kv_blocks_used, is after the step: blocks of a new prefill are in use from
        the step's start, those of a request that ends with it until the step's end, so the level inside is the larger
        of before and after. Between steps it is the one after."""
        order = np.argsort(replica, kind="stable")
        replica, start, stop, after = replica[order], start[order], stop[order], after[order]
        is_first = np.append(True, replica[1:] != replica[:-1])
        is_last = np.append(is_first[1:], True)
        blocks = np.where(is_first, self._blocks[replica], np.append(0.0, after[:-1]))
        stopped = np.where(is_first, self._stop[replica], np.append(0.0, stop[:-1]))
        stopped = np.minimum(stopped, start)
        self._blocks[replica[is_last]], self._stop[replica[is_last]] = after[is_last], stop[is_last]
        for begin, end, level in ((start, stop, np.maximum(after, blocks)), (stopped, start, blocks)):
            kv += bin_amounts(edges, begin, end, level * (end - begin), replica, len(kv))
