"""A step that is one kernel: its instructions by SM, as rows of a trace and as shares of an SM's time."""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import text_table
from .events import Trace


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Times in seconds from the start of its SM's first one."""

    sm: int
    kind: str
    name: str
    start_s: float
    ready_s: float  # the values that it waits for have come
    end_s: float
    weights_s: float  # of these: waiting for weights or keys


_TIMES = ("start", "ready", "end", "weights")
_COLUMNS = ("sm", "kind", "name", *(f"{time}_us" for time in _TIMES))


def simulated(columns: Mapping[str, Any]) -> list[Instruction]:
    """Of `Timeline.instruction_columns()`."""
    rows = zip(*(_plain(columns[field.name]) for field in dataclasses.fields(Instruction)), strict=True)
    return [Instruction(*row) for row in rows]


def _plain(column: Any) -> Sequence[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def measured(file: pathlib.Path) -> list[Instruction]:
    """What `orrery-gpu megakernel --instructions DIRECTORY` wrote. Raises ValueError naming line and column of what is none of it."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        header = tuple(next(rows, ()))
        if header != _COLUMNS:
            raise ValueError(f"{file}:1: found columns {','.join(header)[:80]!r}; expected {','.join(_COLUMNS)}")
        found = [_instruction(file, rows.line_num, row) for row in rows]
    if not found:
        raise ValueError(f"{file}: holds no instruction; expected one in each line")
    return found


def _instruction(file: pathlib.Path, line: int, row: Sequence[str]) -> Instruction:
    if len(row) != len(_COLUMNS):
        raise ValueError(f"{file}:{line}: found {len(row)} cells; expected {len(_COLUMNS)}")
    numbers = []
    for column, text in zip(_COLUMNS[-len(_TIMES):], row[-len(_TIMES):], strict=True):  # fmt: skip
        numbers.append(_number(file, line, column, text) * 1e-6)
    sm = _number(file, line, "sm", row[0])
    start_s, ready_s, end_s, weights_s = numbers
    if sm != int(sm) or not 0 <= start_s <= ready_s <= end_s or not 0 <= weights_s <= end_s - start_s:
        raise ValueError(f"{file}:{line}: found SM {row[0]}, times {', '.join(row[-len(_TIMES):])}; expected a whole number, start, ready and end in order, weights within them")  # fmt: skip
    return Instruction(int(sm), row[1], row[2], start_s, ready_s, end_s, weights_s)


def _number(file: pathlib.Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{file}:{line}: found {text[:40]!r} in column {column}; expected a number")
    return value


def add_instructions(trace: Trace, instructions: Iterable[Instruction], process: int, name: str) -> None:
    """A row for each SM; of each instruction its wait for values within it."""
    trace.process(process, name)
    sms = set()
    for one in instructions:
        if one.sm not in sms:
            trace.thread(process, one.sm, f"SM {one.sm}")
            sms.add(one.sm)
        waits = {"waits for values, us": (one.ready_s - one.start_s) * 1e6, "waits for weights, us": one.weights_s * 1e6}
        trace.span(process, one.sm, one.name, one.kind, one.start_s, one.end_s, waits)
        if one.ready_s > one.start_s:
            trace.span(process, one.sm, "waits for values", "wait", one.start_s, one.ready_s, {})


@dataclasses.dataclass(frozen=True)
class Share:
    """Mean over SMs, of the time from an SM's first instruction to its last."""

    kind: str
    values: float  # waiting for what other SMs compute
    weights: float  # waiting for weights or keys
    rest: float  # multiplying, and what surrounds it


def shares(instructions: Iterable[Instruction]) -> list[Share]:
    """By kind of instruction, the largest first. They add up to one but for the time between instructions."""
    sums: dict[str, list[float]] = {}
    ends: dict[int, tuple[float, float]] = {}
    for one in instructions:
        start_s, end_s = ends.get(one.sm, (one.start_s, one.end_s))
        ends[one.sm] = min(start_s, one.start_s), max(end_s, one.end_s)
        of_kind = sums.setdefault(one.kind, [0.0, 0.0, 0.0])
        of_kind[0] += one.ready_s - one.start_s
        of_kind[1] += one.weights_s
        of_kind[2] += one.end_s - one.ready_s - one.weights_s
    total_s = sum(end_s - start_s for start_s, end_s in ends.values())
    found = [Share(kind, *(part / total_s for part in parts)) for kind, parts in sums.items()]
    return sorted(found, key=lambda share: -(share.values + share.weights + share.rest))


def shares_text(instructions: Sequence[Instruction]) -> str:
    found = shares(instructions)
    whole = Share("all", *(sum(getattr(share, part) for share in found) for part in ("values", "weights", "rest")))
    rows = [[share.kind, *(f"{part:.1%}" for part in (share.values, share.weights, share.rest))] for share in (*found, whole)]
    rows.append(["between instructions", "", "", f"{1 - whole.values - whole.weights - whole.rest:.1%}"])
    return text_table.aligned(("of an SM's time", "waits for values", "waits for weights", "the rest"), rows, right=(1, 2, 3))


__all__ = ["Instruction", "Share", "add_instructions", "measured", "shares", "shares_text", "simulated"]
