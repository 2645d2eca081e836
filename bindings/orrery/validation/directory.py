"""Reads the directory of a validation: what was predicted, and what `orrery-gpu` left in executed/.

The files are listed in sim/scenario/validation.h and kernels/execute/executed_files.h. Whatever is there of executed/
is read, since a run that failed keeps its results. Everything is checked here, before anything is computed: a file that is
cut, does not fit the plans or the workload, or holds what no run leaves (a time of 0, -1, NaN) is an error that names it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from ..report import resolved_scenario
from ..spans import SPAN_COLUMNS
from . import launched, service_files, typed_csv
from .routing import Layer, Rows, executed_rows
from .service_files import Service
from .tables import times_alone
from .typed_csv import any_text, duration, one_of, seconds, size, whole, word

COMPLETE = "complete"
LINES = "lines.txt"
"""In executed/: how many lines each file there has, where the program that ran wrote it."""

_RANK = whole(0, 1_000_000)
_PREDICTED_STEP = {"name": word, "mode": one_of("graph", "eager", "megakernel"), "duration_s": duration, "low_s": seconds, "high_s": duration, "host_s": seconds}
_EXECUTED_STEP = {"name": word, "mode": one_of("graph", "eager", "megakernel"), "duration_s": duration, "device_s": duration}
_EXPERTS = {"name": word, "op": word, "copy": whole(0), "first": whole(0), "rows": any_text}
_CALIBRATION = dict.fromkeys(("kernel", "provider", "device", "revision", "date", "driver"), any_text)
_NEVER_NOTHING = ("weights", "total")  # terms of memory; kv_cache is on some rank, not on those that compute FFNs alone


@dataclasses.dataclass(frozen=True)
class Span:
    """One op copy on one rank. Times in seconds from the start of the step."""

    op: str
    copy: int
    rank: int
    stream: int
    kind: str  # kernel, comm or host
    basis: str  # measured, interpolated, borrowed or roofline
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
    expert_shares: Sequence[float] = ()  # of all choices, as imposed on the router; empty: all alike
    num_ffn_ranks: int = 0  # the last ranks, where FFNs are on GPUs of their own
    kernels: Sequence[launched.GpuKernel] = ()  # of the traced step; empty: only its spans were written
    layers: int = 0  # of experts by themselves, in a row: ops, spans and times are of all of them; 0: a step
    tokens: int = 0  # of a layer, of all ranks together

    @property
    def was_executed(self) -> bool:
        return bool(self.device_s)


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
    num_requests: int  # of the workload
    measured_again: frozenset[str]  # calls whose rows a recalibration of this directory has measured

    @property
    def is_complete(self) -> bool:
        return self.status == COMPLETE


def read(directory: pathlib.Path) -> Case:
    """Everything in `directory`. Raises ValueError naming the file and what is wrong with it."""
    if not (directory / "deployment.txt").is_file():
        raise ValueError(f"found no '{directory / 'deployment.txt'}'; expected what 'orrery validate --plan-only' wrote")
    executed = directory / "executed"
    if not executed.is_dir():
        raise ValueError(f"found no '{executed}'; run 'orrery-gpu execute {directory}' on a host with GPUs first")
    _check_deployment(directory / "deployment.txt")
    _check_scenario(directory / "scenario.yaml")
    _check_lines(executed)
    written = _status(executed)
    is_complete = written == COMPLETE
    services = service_files.read(directory, is_complete=is_complete)
    steps = tuple(_steps(directory))
    missing = [step.name for step in steps if not step.was_executed]
    case = Case(
        directory=directory,
        scenario_text=typed_csv.read_text(directory / "scenario.yaml"),
        steps=steps,
        memory=_memory(directory / "predicted" / "memory.csv", is_complete=True),
        measured_memory=_memory(executed / "memory.csv", is_complete=is_complete) if (executed / "memory.csv").is_file() else {},
        service=services.predicted if services else None,
        measured_service=services.measured if services else None,
        warmup_requests=services.warmup_requests if services else 0,
        environment=_facts(executed / "environment.txt"),
        provenance=_facts(directory / "predicted" / "provenance.txt"),
        calibration=[row for _, row in typed_csv.rows(directory / "predicted" / "calibration.csv", _CALIBRATION)],
        measured_again=measured_again(directory),
        status=_whole_status(written, missing, lacks_service=bool(services and not services.measured)),
        num_requests=services.num_requests if services else 0,
    )
    if not any(step.was_executed for step in steps) and case.measured_service is None:
        raise ValueError(f"{executed}: nothing was measured ({case.status})")
    return case


def measured_again(directory: pathlib.Path) -> frozenset[str]:
    """Calls ("gemm bf16 m=1 n=2 k=3") that recalibrations have timed, of those in DIR/recalibration_<n>/tables."""
    return frozenset(call for tables in directory.glob("recalibration_*/tables") for call in times_alone(tables))


def _check_deployment(path: pathlib.Path) -> None:
    """That it was not cut: config.json's fields stand last, by name."""
    lines = typed_csv.read_text(path).splitlines(keepends=True)
    for start in ("name ", "num_kv_blocks ", "seed ", "config "):
        if not any(line.startswith(start) and line.endswith("\n") for line in lines):
            raise ValueError(f"{path}: found no line '{start}...' in {len(lines)} lines: the file is cut")
    if not any(line.startswith("config ") and line.split()[1].endswith("vocab_size") for line in lines):
        raise ValueError(f"{path}: found no line 'config vocab_size ...' in {len(lines)} lines: the file is cut")


def _check_scenario(path: pathlib.Path) -> None:
    """That it has what the page says of it."""
    typed_csv.read_text(path)
    scenario = resolved_scenario.read(path)
    where = "disaggregation" if "disaggregation" in scenario else "placement"
    for section, keys in (("model", ("config", "weights", "activations", "kv_cache")), ("engine", ("profile",)), (where, ())):
        found = scenario.get(section)
        if not isinstance(found, dict) or any(key not in found for key in keys):
            raise ValueError(f"{path}: found no {', '.join(f'{section}.{key}' for key in keys) or section}; expected a resolved scenario")
    if "provider" not in scenario:
        raise ValueError(f"{path}: found no provider; expected a resolved scenario")


def _check_lines(executed: pathlib.Path) -> None:
    """That each file has the lines that its writer counted."""
    if not (executed / LINES).is_file():
        return
    for line, row in typed_csv.rows(executed / LINES, {"file": word, "lines": whole(0)}):
        path = executed / row["file"]
        found = typed_csv.read_text(path).count("\n")
        if found != row["lines"]:
            raise ValueError(f"{path}: found {found} lines; {executed / LINES}:{line} says {row['lines']}: the file is cut or of another run")


def _status(executed: pathlib.Path) -> str:
    """Line of status.txt; empty: the run did not end."""
    path = executed / "status.txt"
    return typed_csv.read_text(path).strip().removeprefix("failed rank - op -: ") if path.is_file() else ""


def _whole_status(written: str, missing: Sequence[str], *, lacks_service: bool) -> str:
    if written != COMPLETE:
        return written or "not finished: there is no status.txt"
    if missing:
        return "not executed: " + ", ".join(missing)
    return "not served: there is no requests.csv" if lacks_service else COMPLETE


def _steps(directory: pathlib.Path) -> Iterator[Step]:
    executed = directory / "executed"
    predicted = _predicted_steps(directory)
    samples = _samples(executed / "steps.csv", {name: row["mode"] for name, row in predicted.items()})
    experts: dict[str, dict[Layer, list[int]]] = {}
    if (file := executed / "experts.csv").is_file():
        experts = executed_rows(file, typed_csv.rows(file, _EXPERTS))
    shares = _expert_shares(directory / "deployment.txt")
    num_ffn_ranks = _num_ffn_ranks(directory / "deployment.txt")
    for name, row in predicted.items():
        ops = _ops(directory / "steps" / f"{name}.plan")
        trace, kernels = (executed / f"{name}.{kind}.csv" for kind in ("spans", "kernels"))
        measured = _spans(trace, ops) if trace.is_file() else ()
        batch, layers, tokens = _batch(directory / "steps" / f"{name}.step")
        yield Step(
            name=name,
            mode=row["mode"],
            batch=batch,
            ops=ops,
            duration_s=row["duration_s"],
            low_s=row["low_s"],
            high_s=row["high_s"],
            host_s=row["host_s"],
            predicted=_spans(directory / "predicted" / f"{name}.spans.csv", ops),
            device_s=[device for device, _ in samples.get(name, ())],
            wall_s=[wall for _, wall in samples.get(name, ())],
            measured=measured,
            experts=experts.get(name, {}),
            expert_shares=shares,
            num_ffn_ranks=num_ffn_ranks,
            kernels=launched.executed_kernels(kernels, typed_csv.rows(kernels, launched.COLUMNS), ops, measured) if kernels.is_file() else (),
            layers=layers,
            tokens=tokens,
        )


def _expert_shares(deployment: pathlib.Path) -> list[float]:
    """Of its line `mesh expert_load`, of the slots that hold experts, else of `lowering expert_load`; none where all are alike."""
    shares: dict[str, list[float]] = {}
    for line in typed_csv.read_text(deployment).splitlines():
        key, _, words = line.rpartition(" ")
        if key.endswith(" expert_load") and words != "-":
            shares[key] = [float(word) for word in words.split(",")]
    return shares.get("mesh expert_load") or shares.get("lowering expert_load", [])


def _num_ffn_ranks(deployment: pathlib.Path) -> int:
    sizes = {"mesh ffn_instances": 0, "mesh ffn_tp": 1}
    for line in typed_csv.read_text(deployment).splitlines():
        key, _, word = line.rpartition(" ")
        if key in sizes:
            sizes[key] = int(word)
    return math.prod(sizes.values())


def _predicted_steps(directory: pathlib.Path) -> dict[str, dict[str, Any]]:
    path = directory / "predicted" / "steps.csv"
    found: dict[str, dict[str, Any]] = {}
    for line, row in typed_csv.rows(path, _PREDICTED_STEP):
        if not row["low_s"] <= row["duration_s"] <= row["high_s"]:
            raise ValueError(f"{path}:{line}: duration_s {row['duration_s']:g} is not within low_s {row['low_s']:g} and high_s {row['high_s']:g}")
        if row["name"] in found:
            raise ValueError(f"{path}:{line}: step {typed_csv.shown(row['name'])} is there twice")
        found[row["name"]] = row
    planned = sorted(file.stem for file in (directory / "steps").glob("*.step"))
    for name in planned:
        if name not in found:
            raise ValueError(f"{path}: found no step '{name}', of which there is steps/{name}.step; the file is cut")
    for name in found:
        if name not in planned:
            raise ValueError(f"found no '{directory / 'steps' / name}.step', a step of {path}; the directory is not whole")
    return found


def _samples(path: pathlib.Path, modes: Mapping[str, str]) -> dict[str, list[tuple[float, float]]]:
    """By step (device_s, duration_s) of each iteration."""
    samples: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    if not path.is_file():
        return samples
    for line, row in typed_csv.rows(path, _EXECUTED_STEP | {"iteration": whole(0)}):
        name = row["name"]
        if modes.get(name) != row["mode"]:
            raise ValueError(
                f"{path}:{line}: step {typed_csv.shown(name)} in mode {row['mode']} was not predicted: these results are of another plan"
            )
        if row["iteration"] != len(samples[name]):
            raise ValueError(f"{path}:{line}: found iteration {row['iteration']} of step '{name}', expected {len(samples[name])}")
        samples[name].append((row["device_s"], row["duration_s"]))
    return samples


def _ops(path: pathlib.Path) -> Sequence[Mapping[str, Any]]:
    text = typed_csv.read_text(path)
    try:
        ops = _core.plan_ops(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not any(op["body"]["kind"] == "kernel" for op in ops):
        raise ValueError(f"{path}: holds no kernel; expected a plan")
    return ops


def _batch(path: pathlib.Path) -> tuple[str, int, int]:
    """The step file in words, "prefill of 2,048 and 512 tokens, 64 decodes at 4,096"; layers by themselves and their tokens, or 0 and 0."""
    chunks: list[str] = []
    decodes = ""
    for number, line in enumerate(typed_csv.read_text(path).splitlines(), start=1):
        words = line.split()
        try:
            numbers = [whole(0)(text) for text in words[1:]] if words[:1] != ["mode"] else []
        except ValueError as error:
            raise ValueError(f"{path}:{number}: found {typed_csv.shown(line)}, expected {error}") from None
        if words[:1] == ["prefill"] and len(numbers) == 3:
            chunks.append(f"{numbers[0]:,}" + (f" after {numbers[1]:,}" if numbers[1] else ""))
        elif words[:1] == ["decodes"] and len(numbers) == 2:
            decodes = f"{numbers[0]:,} decode{'s' if numbers[0] != 1 else ''} at {numbers[1]:,}"
        elif words[:1] == ["layers"] and len(numbers) == 2 and min(numbers) > 0:
            return f"a layer of experts, {numbers[1]:,} tokens", numbers[0], numbers[1]
        elif words[:1] != ["mode"]:
            raise ValueError(f"{path}:{number}: found {typed_csv.shown(line)}, expected mode, prefill (3 numbers), decodes or layers (2 numbers)")
    if not chunks and not decodes:
        raise ValueError(f"{path}: found neither prefill nor decodes nor layers; the file is cut")
    prefill = f"prefill of {', '.join(chunks)} tokens" if chunks else ""
    return ", ".join(filter(None, (prefill, decodes))), 0, 0


def _spans(path: pathlib.Path, ops: Sequence[Mapping[str, Any]]) -> tuple[Span, ...]:
    """Spans of a timeline; each rank's ends with the last kernel of the plan, since they stand in order of time."""
    tasks = {(op["op"], op["copy"]): set(op["ranks"]) for op in ops}
    found = []
    for line, row in typed_csv.rows(path, SPAN_COLUMNS):
        span = Span(**row)
        if span.rank not in tasks.get((span.op, span.copy), ()):
            raise ValueError(
                f"{path}:{line}: op {typed_csv.shown(span.op)}, copy {span.copy}, on rank {span.rank} is not in the plan of this step: "
                "these results are of another plan"
            )
        if span.end_s < span.start_s:
            raise ValueError(f"{path}:{line}: op '{span.op}' ends at {span.end_s:g} s, before its start at {span.start_s:g} s")
        found.append(span)
    last = next(op for op in reversed(ops) if op["body"]["kind"] == "kernel")
    reached = {span.rank for span in found if (span.op, span.copy) == (last["op"], last["copy"])}
    if lacking := sorted(set(last["ranks"]) - reached):
        raise ValueError(f"{path}: found no span of the plan's last kernel, op '{last['op']}', on rank {lacking[0]}: the file is cut")
    return tuple(found)


def _memory(path: pathlib.Path, *, is_complete: bool) -> dict[tuple[int, str], float]:
    """The last value of each rank and term counts: the file is appended to. All ranks have the same terms, once a run is complete."""
    found: dict[tuple[int, str], float] = {}
    cache_line = 0
    for line, row in typed_csv.rows(path, {"rank": _RANK, "term": word, "bytes": size}):
        if row["term"] in _NEVER_NOTHING and not row["bytes"]:
            raise ValueError(f"{path}:{line}: column bytes: found 0 of {row['term']}, expected more")
        found[row["rank"], row["term"]] = row["bytes"]
        if row["term"] == "kv_cache":
            cache_line = line
    if cache_line and not any(held for (_, term), held in found.items() if term == "kv_cache"):
        raise ValueError(f"{path}:{cache_line}: column bytes: found 0 of kv_cache, expected more")
    terms = {term for _, term in found}
    for rank in sorted({rank for rank, _ in found}) if is_complete else ():
        if lacking := sorted(term for term in terms | {"total"} if (rank, term) not in found):
            raise ValueError(f"{path}: rank {rank} has no {lacking[0]}: the file is cut")
    return found


def _facts(path: pathlib.Path) -> dict[str, str]:
    """Lines "key value"; none where there is no file."""
    if not path.is_file():
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in typed_csv.read_text(path).splitlines()) if key}
