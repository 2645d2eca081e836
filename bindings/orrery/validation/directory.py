"""Reads the directory of a validation: what was predicted, and what `orrery-gpu` left in executed/.

The files are listed in sim/scenario/validation.h and kernels/execute/executed_files.h. Whatever is there of executed/
is read, since a run that failed keeps its results; a file that does not fit the plans is an error that names it.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from .routing import Layer, Rows, executed_rows
from .tables import times_alone

COMPLETE = "complete"


@dataclasses.dataclass(frozen=True)
class Span:
    """One op copy on one rank. Times in seconds from the start of the step."""

    op: str
    copy: int
    rank: int
    stream: int
    kind: str  # kernel, comm or host
    basis: str  # measured, interpolated or roofline
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    mode: str
    batch: str  # in words
    ops: Sequence[Mapping[str, Any]]  # of the plan, repeats written out (_core.plan_ops)
    duration_s: float  # predicted, of the device; low_s to high_s hold it in 80 of 100 cases
    low_s: float
    high_s: float
    host_s: float  # predicted, around the device
    predicted: Sequence[Span]
    device_s: Sequence[float]  # measured, one for each iteration
    wall_s: Sequence[float]  # the same by the host's clock
    measured: Sequence[Span]  # empty: not traced
    experts: Rows = dataclasses.field(default_factory=dict)  # empty: nothing is routed, or it was not counted

    @property
    def was_executed(self) -> bool:
        return bool(self.device_s)


@dataclasses.dataclass(frozen=True)
class Service:
    """Columns of requests.csv and serve_steps.csv, as floats; an empty cell is NaN."""

    requests: Mapping[str, list[float]]
    steps: Mapping[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Case:
    directory: pathlib.Path
    scenario_text: str
    steps: Sequence[Step]
    memory: Mapping[tuple[int, str], float]  # predicted, by rank and term
    measured_memory: Mapping[tuple[int, str], float]
    service: Service | None
    measured_service: Service | None
    warmup_requests: int
    environment: Mapping[str, str]
    provenance: Mapping[str, str]
    calibration: Sequence[Mapping[str, str]]
    status: str  # "complete", or why not everything is there
    measured_again: frozenset[str]  # calls whose rows a recalibration of this directory has measured

    @property
    def is_complete(self) -> bool:
        return self.status == COMPLETE


def read(directory: pathlib.Path) -> Case:
    """Everything in `directory`. Raises ValueError naming the file and what is wrong with it."""
    if not (directory / "deployment.txt").is_file():
        raise ValueError(
            f"found no '{directory / 'deployment.txt'}'; expected what 'orrery validate --plan-only' wrote"
        )
    if not (directory / "executed").is_dir():
        raise ValueError(
            f"found no '{directory / 'executed'}'; run 'orrery-gpu execute {directory}' on a host with GPUs first"
        )
    serves = (directory / "workload.csv").is_file()
    executed = directory / "executed"
    has_service = serves and (executed / "requests.csv").is_file()
    steps = tuple(_steps(directory))
    case = Case(
        directory=directory,
        scenario_text=_text(directory / "scenario.yaml"),
        steps=steps,
        memory=_memory(directory / "predicted" / "memory.csv"),
        measured_memory=_memory(executed / "memory.csv") if (executed / "memory.csv").is_file() else {},
        service=_service(directory / "predicted") if serves else None,
        measured_service=_service(executed) if has_service else None,
        warmup_requests=int(_facts(directory / "serve.txt").get("warmup", "0")) if serves else 0,
        environment=_facts(executed / "environment.txt"),
        provenance=_facts(directory / "predicted" / "provenance.txt"),
        calibration=list(
            _rows(directory / "predicted" / "calibration.csv", ("kernel", "provider", "revision", "date"))
        ),
        measured_again=measured_again(directory),
        status=_status(executed, [step.name for step in steps if not step.was_executed], serves and not has_service),
    )
    if not any(step.was_executed for step in steps) and case.measured_service is None:
        raise ValueError(f"{executed}: nothing was measured ({case.status})")
    return case


def measured_again(directory: pathlib.Path) -> frozenset[str]:
    """Calls ("gemm bf16 m=1 n=2 k=3") that recalibrations have timed, of those in DIR/recalibration_<n>/tables."""
    return frozenset(call for tables in directory.glob("recalibration_*/tables") for call in times_alone(tables))


def _status(executed: pathlib.Path, missing: Sequence[str], lacks_service: bool) -> str:
    path = executed / "status.txt"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    if text and text != COMPLETE:
        return text.removeprefix("failed rank - op -: ")
    if not text:
        return "not finished: there is no status.txt"
    if missing:
        return "not executed: " + ", ".join(missing)
    return "not served: there is no requests.csv" if lacks_service else COMPLETE


def _steps(directory: pathlib.Path) -> Iterator[Step]:
    executed = directory / "executed"
    samples: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    experts: dict[str, dict[Layer, list[int]]] = {}
    if (file := executed / "experts.csv").is_file():
        experts = executed_rows(file, _rows(file, ("name", "op", "copy", "first", "rows")))
    predicted = list(
        _rows(directory / "predicted" / "steps.csv", ("name", "mode", "duration_s", "low_s", "high_s", "host_s"))
    )
    modes = {row["name"]: row["mode"] for row in predicted}
    if (executed / "steps.csv").is_file():
        for row in _rows(executed / "steps.csv", ("name", "mode", "duration_s", "device_s")):
            if modes.get(row["name"]) != row["mode"]:
                raise ValueError(
                    f"{executed / 'steps.csv'}: step '{row['name']}' in mode {row['mode']} was not predicted: "
                    "these results are of another plan"
                )
            samples[row["name"]].append((_number(row, "device_s"), _number(row, "duration_s")))
    for row in predicted:
        name = row["name"]
        plan = directory / "steps" / f"{name}.plan"
        text = _text(plan)
        try:
            ops = _core.plan_ops(text)
        except ValueError as error:
            raise ValueError(f"{plan}: {error}") from None
        tasks = {(op["op"], op["copy"]): set(op["ranks"]) for op in ops}
        trace = executed / f"{name}.spans.csv"
        yield Step(
            name=name,
            mode=row["mode"],
            batch=_batch(directory / "steps" / f"{name}.step"),
            ops=ops,
            duration_s=_number(row, "duration_s"),
            low_s=_number(row, "low_s"),
            high_s=_number(row, "high_s"),
            host_s=_number(row, "host_s"),
            predicted=_spans(directory / "predicted" / f"{name}.spans.csv", tasks),
            device_s=[device for device, _ in samples[name]],
            wall_s=[wall for _, wall in samples[name]],
            measured=_spans(trace, tasks) if trace.is_file() else (),
            experts=experts.get(name, {}),
        )


def _batch(path: pathlib.Path) -> str:
    """The step file in words: "prefill of 2,048 and 512 tokens, 64 decodes at 4,096"."""
    chunks: list[str] = []
    decodes = ""
    for line in _text(path).splitlines():
        words = line.split()
        if words[:1] == ["prefill"]:
            chunks.append(f"{int(words[1]):,}" + (f" after {int(words[2]):,}" if words[2] != "0" else ""))
        elif words[:1] == ["decodes"]:
            decodes = f"{int(words[1]):,} decode{'s' if words[1] != '1' else ''} at {int(words[2]):,}"
    prefill = f"prefill of {', '.join(chunks)} tokens" if chunks else ""
    return ", ".join(filter(None, (prefill, decodes)))


def _spans(path: pathlib.Path, tasks: Mapping[tuple[str, int], set[int]]) -> tuple[Span, ...]:
    found = []
    for row in _rows(path, tuple(field.name for field in dataclasses.fields(Span))):
        try:
            span = Span(
                op=row["op"],
                copy=int(row["copy"]),
                rank=int(row["rank"]),
                stream=int(row["stream"]),
                kind=row["kind"],
                basis=row["basis"],
                start_s=float(row["start_s"]),
                end_s=float(row["end_s"]),
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if span.rank not in tasks.get((span.op, span.copy), ()):
            raise ValueError(
                f"{path}: op '{span.op}', copy {span.copy}, on rank {span.rank} is not in the plan of this step: "
                "these results are of another plan"
            )
        found.append(span)
    return tuple(found)


def _memory(path: pathlib.Path) -> dict[tuple[int, str], float]:
    """The last value of each rank and term counts: the file is appended to."""
    return {(int(row["rank"]), row["term"]): _number(row, "bytes") for row in _rows(path, ("rank", "term", "bytes"))}


def _service(directory: pathlib.Path) -> Service:
    requests: tuple[str, ...] = ("id", "replica", "prompt_tokens", "output_tokens", "cached_tokens", "num_preemptions", "arrival_s",
                                 "first_scheduled_s", "first_token_s", "finish_s", "ttft_s", "tpot_s", "e2e_s")  # fmt: skip
    steps = ("replica", "start_s", "duration_s", "num_steps", "prefill_tokens", "num_prefills", "num_decodes", "decode_context")
    file = directory / "requests.csv"
    if "transfer_start_s" in _text(file).partition("\n")[0].split(","):
        requests += ("prefill_end_s", "transfer_start_s", "transfer_end_s", "second_token_s", "exposed_transfer_s")
    return Service(requests=_columns(file, requests), steps=_columns(directory / "serve_steps.csv", steps))


def _columns(path: pathlib.Path, names: Sequence[str]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {name: [] for name in names}
    for row in _rows(path, names):
        for name in names:
            columns[name].append(_number(row, name) if row[name] else float("nan"))
    return columns


def _facts(path: pathlib.Path) -> dict[str, str]:
    """Lines "key value"; none where there is no file."""
    if not path.is_file():
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in _text(path).splitlines()) if key}


def _rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[dict[str, str]]:
    lines = csv.DictReader(_text(path).splitlines())
    lacking = [name for name in names if name not in (lines.fieldnames or ())]
    if lacking:
        raise ValueError(f"{path}: found no column {', '.join(lacking)}")
    for row in lines:
        if any(row[name] is None for name in names):
            raise ValueError(f"{path}:{lines.line_num}: the line ends early")
        yield row


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        return float(row[name])
    except ValueError:
        raise ValueError(f"column {name}: found '{row[name]}', expected a number") from None


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"found no '{path}'; the directory is not whole") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
