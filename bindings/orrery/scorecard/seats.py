"""Published rows whose clients wait for one another's whole answers although their server has room for all of them.

Of C clients in a closed loop let S < C be served at a time. By Little's law a request then waits (C - S) / S of the time that one
is served, so the mean TTFT grows by that much of what decoding, (output - 1) TPOT, takes longer. Where everybody is served nothing
of it grows so: a prompt waits for steps, not until others have their last token. So rows that differ in their output alone say how
many clients had no seat:

    TTFT = a + b (output - 1) TPOT,    C - S = C b / (1 + b),    one `a` for each shape, one `b` for all shapes of a run at C clients.

Least squares of TTFT over the shape's mean: runs repeat within a share of their TTFT. Nothing simulated enters. A run is not judged
where its server may have made clients wait for one another: fewer seats than clients by the row, its script or the engine's
default; caches that need not fit together; or a process that sends tokens and is near the most that the run shows of it, so
that tokens of whole answers pile up before the next client's first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import lengths, rules
from .data_sheet import BYTES, RUN, capacity, config

if TYPE_CHECKING:
    from .cases import Case

LEAST_MISSING = 0.5  # seats: nearer to one than to none
LEAST_ERRORS = 3.0  # standard errors by which it must differ from none
LEAST_SHAPES = 2  # of a run at equal clients, with two output lengths or more each
LEAST_FREEDOM = 3  # rows beyond the numbers that are found from them
MOST_CACHE = 0.5  # of what the weights leave: the rest is for activations, for other formats and for what an engine keeps free
MOST_RATE = 0.8  # of the most tokens a second that the run shows
SHAPE = ("parallelism", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "replicas", "num_gpus", "num_nodes", "kv_dtype", "max_batch",
         "max_num_tokens", "isl", "lengths", "source")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Missing:
    """What rows of one run at equal clients say, and the ids of the cases that say it."""

    clients: int
    seats: float  # that were missing
    error: float  # one standard error
    case_ids: tuple[str, ...]

    @property
    def is_contradiction(self) -> bool:
        return self.seats >= LEAST_MISSING and self.seats > LEAST_ERRORS * self.error


@dataclasses.dataclass(frozen=True)
class _Row:
    case: Case
    clients: int
    output: float
    ttft: float  # s
    tpot: float  # s

    @property
    def decoding(self) -> float:
        return (self.output - 1) * self.tpot

    @property
    def rate(self) -> float:
        """Output tokens a second of one server."""
        return self.clients * self.output / (self.ttft + self.decoding) / self.case.whole("replicas", 1)


def missing(cases: Iterable[Case]) -> dict[tuple[str, ...], Missing]:
    """By run and clients, of those that can be judged."""
    runs: dict[tuple[str, ...], list[_Row]] = {}
    for case in cases:
        if row := _read(case):
            runs.setdefault(tuple(case.fields[name] for name in RUN), []).append(row)
    found = {}
    for run, rows in runs.items():
        most = max(row.rate for row in rows)
        for clients in sorted({row.clients for row in rows}):
            shapes = [shape for shape in _shapes(rows, clients) if all(row.rate <= MOST_RATE * most and _has_room(row) for row in shape)]
            if judged := _judged(clients, shapes):
                found[*run, str(clients)] = judged
    return found


def contradictions(cases: Iterable[Case]) -> dict[str, str]:
    """By case id why the row contradicts its own description."""
    return {
        case_id: (
            f"the mean TTFT grows with the output as if {found.seats:.2f} (+- {found.error:.2f}) of {found.clients} clients had no seat, "
            "though seats and caches suffice and the server sends tokens faster elsewhere"
        )
        for found in missing(cases).values() if found.is_contradiction for case_id in found.case_ids
    }  # fmt: skip


def _read(case: Case) -> _Row | None:
    """None where the row is no closed loop, or does not say enough."""
    fields = case.fields
    if case.problem or rules.not_simulated(fields) or fields["load_kind"] != "closed_loop" or fields["layout"] != "aggregated":
        return None
    times = {m.metric: m.value * {"s": 1.0, "ms": 1e-3}.get(m.unit, math.nan) for m in case.measurements}
    output = lengths.read(fields["osl"])
    if not (fields["load_value"].isdecimal() and output and lengths.read(fields["isl"]) and {"ttft", "tpot"} <= times.keys()):
        return None
    row = _Row(case, int(fields["load_value"]), output.mean, times["ttft"], times["tpot"])
    return row if math.isfinite(row.rate) else None


def _shapes(rows: Sequence[_Row], clients: int) -> list[list[_Row]]:
    """Rows that differ in their output alone, of two outputs or more."""
    shapes: dict[tuple[str, ...], list[_Row]] = {}
    for row in rows:
        if row.clients == clients:
            day = rules.day_of(row.case.fields)
            key = (str(day.date) if day else "", *(row.case.fields[name] for name in SHAPE))
            shapes.setdefault(key, []).append(row)
    return [shape for shape in shapes.values() if len({row.output for row in shape}) > 1]


def _has_room(row: _Row) -> bool:
    """Whether the server has seats for all clients, and memory for all that they will have said, by a wide margin."""
    case, fields = row.case, row.case.fields
    found = rules.settings(fields)
    model, memory = config(fields), capacity(fields["gpu_key"])
    format_ = found.get("expert_weights", found.get("weights", ""))
    servers = case.whole("attention_dp", 1) * case.whole("replicas", 1)
    if not model or not memory or format_ not in BYTES or not found.get("max_num_seqs", "").isdecimal():
        return False
    if int(found["max_num_seqs"]) * servers < row.clients:
        return False
    longest = sum(lengths_.most for name in ("isl", "osl") if (lengths_ := lengths.read(fields[name])))
    stage = case.whole("tp", 1) * case.whole("pp", 1)
    weights = model.num_parameters * BYTES[format_] / (stage * case.whole("attention_dp", 1))
    # Keys and values are split by heads; caches of other kinds (latent, windowed) are taken to be whole on every GPU. 16-bit values.
    is_by_head = model.kv_bytes(1) == 2 * 2 * model.num_key_value_heads * model.head_dim * model.num_layers
    ways = case.whole("pp", 1) * (min(case.whole("tp", 1), model.num_key_value_heads) if is_by_head else 1)
    caches = math.ceil(row.clients / servers) * model.kv_bytes(longest) / ways
    return caches <= MOST_CACHE * (memory - weights)


def _judged(clients: int, shapes: Sequence[Sequence[_Row]]) -> Missing | None:
    """Seats that were missing and their standard error; None where the rows are too few."""
    rows = [row for shape in shapes for row in shape]
    freedom = len(rows) - len(shapes) - 1
    if len(shapes) < LEAST_SHAPES or freedom < LEAST_FREEDOM:
        return None
    decoding, ttft = (np.concatenate(found) for found in zip(*(_centred(shape) for shape in shapes)))
    slope = float(decoding @ ttft / (decoding @ decoding))
    error = math.sqrt(float(np.sum((ttft - slope * decoding) ** 2)) / freedom / float(decoding @ decoding))
    per_seat = 1 + max(slope, 0.0)  # clients
    # C b / (1 + b), and its derivative by b.
    return Missing(clients, clients * slope / per_seat, clients * error / per_seat**2, tuple(row.case.case_id for row in rows))


def _centred(shape: Sequence[_Row]) -> tuple[np.ndarray, np.ndarray]:
    """Decode time and TTFT less their means, over the mean TTFT."""
    decoding, ttft = (np.array([getattr(row, name) for row in shape]) for name in ("decoding", "ttft"))
    return (decoding - decoding.mean()) / ttft.mean(), (ttft - ttft.mean()) / ttft.mean()
