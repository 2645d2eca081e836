"""A profiler's trace as kernels, launches and annotations: Kineto's Chrome traces (.json, .json.gz) and Nsight Systems' SQLite export.

Kineto's files are read event by event, so a trace of hundreds of megabytes needs memory for what is kept of it alone.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

FORMATS = "a Chrome trace of torch.profiler (.json, .json.gz) or Nsight Systems' SQLite export (nsys export --type sqlite)"
_CHUNK = 1 << 22
_MOST_EVENT = 1 << 24  # characters
_SPACE = re.compile(r"[\s,]*")
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
Shape = tuple[int, ...]


class TraceError(ValueError):
    """A trace that is not what was asked for; says what was found and what is expected."""


@dataclasses.dataclass(slots=True)
class Kernel:
    """A kernel, copy or fill on the GPU; microseconds of the trace's clock."""

    name: str
    start: float
    duration: float
    stream: int
    launched: float  # when the host launched it, or the graph that it is a node of; the start where that is not known
    is_graph: bool
    op: str = ""  # the framework's innermost call that launched it
    shapes: tuple[Shape, ...] = ()
    is_copy: bool = False

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclasses.dataclass(slots=True)
class Annotation:
    name: str
    start: float
    end: float


@dataclasses.dataclass
class Trace:
    path: pathlib.Path
    kernels: list[Kernel]  # by start
    annotations: list[Annotation]  # of the host, by start
    launches: list[tuple[float, float]]  # begin and end of each call that launches, by begin
    device: str = ""  # as the driver names it
    rank: int | None = None
    base_ns: int | None = None  # epoch of the trace's zero


def read(path: pathlib.Path) -> Trace:
    """Raises TraceError saying what was found and what is expected."""
    if not path.is_file():
        raise TraceError(f"found no file '{path}'; expected {FORMATS}")
    with path.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(b"SQLite format 3"):
        from . import nsight

        trace = nsight.read(path)
    else:
        trace = _read_kineto(path, is_packed=head.startswith(b"\x1f\x8b"))
    if not trace.kernels:
        raise TraceError(f"{path}: found no kernel of a GPU among its events; expected a trace of ProfilerActivity.CUDA, or nsys with -t cuda")
    trace.kernels.sort(key=lambda kernel: kernel.start)
    trace.annotations.sort(key=lambda annotation: annotation.start)
    trace.launches.sort()
    return trace


# --- Kineto


def _read_kineto(path: pathlib.Path, *, is_packed: bool) -> Trace:
    collected = _Collected()
    try:
        with gzip.open(path, "rt", encoding="utf-8") if is_packed else path.open(encoding="utf-8") as stream:
            around = _each_event(path, stream, collected.take)
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: damaged: {error}; expected {FORMATS}") from None
    return collected.trace(path, around)


def _each_event(path: pathlib.Path, stream: IO[str], take: Callable[[dict[str, Any]], None]) -> str:
    """Gives `take` each event; returns the text around them, the start and the end of the file."""
    buffer = ""
    while (begin := _events_at(buffer)) < 0:
        more = stream.read(_CHUNK)
        if not more:
            raise TraceError(f"{path}: found no traceEvents; expected {FORMATS}")
        buffer += more
        if len(buffer) > 16 * _MOST_EVENT:
            raise TraceError(f"{path}: found no traceEvents in the first {len(buffer):,} characters; expected {FORMATS}")
    head = buffer[:begin]
    decode = json.JSONDecoder().raw_decode
    position, ended = begin, False
    while True:
        match = _SPACE.match(buffer, position)
        position = match.end() if match else position
        if len(buffer) - position < 1 << 16 and not ended:
            more = stream.read(_CHUNK)
            ended = not more
            buffer, position = buffer[position:] + more, 0
            continue
        if buffer.startswith("]", position):
            return head + buffer[position:] + stream.read()
        try:
            event, after = decode(buffer, position)
        except ValueError:
            if ended or len(buffer) - position > _MOST_EVENT:
                found = buffer[position : position + 60]
                raise TraceError(f"{path}: found {found!r} among its events; expected JSON up to the closing bracket (a trace cut off?)") from None
            more = stream.read(_CHUNK)
            ended = not more
            buffer, position = buffer[position:] + more, 0
            continue
        position = after
        if isinstance(event, dict):
            take(event)


def _events_at(text: str) -> int:
    """Where the first event stands: in the list traceEvents, or in a list that is the whole file; -1: not in this text."""
    stripped = text.lstrip()
    if stripped.startswith("["):
        return len(text) - len(stripped) + 1
    found = re.search(r'"traceEvents"\s*:\s*\[', text)
    return found.end() if found else -1


class _Collected:
    """What is kept of the events."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Kernel, int, int]] = []  # with correlation and external id
        self.launches: dict[int, tuple[float, float, str]] = {}
        self.ops: dict[int, tuple[str, tuple[Shape, ...]]] = {}
        self.annotations: list[Annotation] = []
        self._shapes: dict[str, tuple[Shape, ...]] = {}

    def take(self, event: dict[str, Any]) -> None:
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        if category == "cpu_op":
            args = event.get("args", {})
            external = args.get("External id")
            if external is not None:
                self.ops[int(external)] = (event["name"], self._shapes_of(args.get("Input Dims")))
        elif category in _GPU_CATEGORIES:
            self._take_kernel(event, is_copy=category != "kernel")
        elif category in ("cuda_runtime", "cuda_driver", "hip_runtime"):
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                start = float(event["ts"])
                self.launches[int(correlation)] = (start, start + float(event["dur"]), event["name"])
        elif category == "user_annotation":
            start = float(event["ts"])
            self.annotations.append(Annotation(event["name"], start, start + float(event["dur"])))

    def _take_kernel(self, event: dict[str, Any], *, is_copy: bool) -> None:
        args = event.get("args", {})
        start = float(event["ts"])
        kernel = Kernel(event["name"], start, float(event["dur"]), int(args.get("stream", 0)), start, False, is_copy=is_copy)
        self.kernels.append((kernel, int(args.get("correlation", -1)), int(args.get("External id", -1))))

    def _shapes_of(self, dims: Any) -> tuple[Shape, ...]:
        """Of the tensors; equal ones are kept once."""
        if not dims:
            return ()
        key = repr(dims)
        if key not in self._shapes:
            self._shapes[key] = tuple(tuple(each) for each in dims if isinstance(each, list) and all(isinstance(size, int) for size in each))
        return self._shapes[key]

    def trace(self, path: pathlib.Path, around: str) -> Trace:
        for kernel, correlation, external in self.kernels:
            launch = self.launches.get(correlation)
            if launch is not None:
                kernel.launched = launch[0]
                kernel.is_graph = "GraphLaunch" in launch[2]
            if not kernel.is_graph:
                kernel.op, kernel.shapes = self.ops.get(external, ("", ()))
        base = re.search(r'"baseTimeNanoseconds"\s*:\s*(\d+)', around)
        rank = re.search(r'"distributedInfo"\s*:\s*\{[^}]*"rank"\s*:\s*(\d+)', around)
        device = re.search(r'"deviceProperties"\s*:\s*\[[^\]]*?"name"\s*:\s*"([^"]*)"', around)
        return Trace(
            path=path,
            kernels=[kernel for kernel, _, _ in self.kernels],
            annotations=self.annotations,
            launches=[(begin, end) for begin, end, name in self.launches.values() if "Launch" in name],
            device=device.group(1) if device else "",
            rank=int(rank.group(1)) if rank else None,
            base_ns=int(base.group(1)) if base else None,
        )


def by_stream(kernels: Sequence[Kernel]) -> Iterator[tuple[int, list[Kernel]]]:
    """Kernels of each stream, the one with most time first."""
    found: dict[int, list[Kernel]] = collections.defaultdict(list)
    for kernel in kernels:
        found[kernel.stream].append(kernel)
    yield from sorted(found.items(), key=lambda item: -sum(kernel.duration for kernel in item[1]))
