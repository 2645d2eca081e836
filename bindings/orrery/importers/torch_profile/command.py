"""The command `orrery import torch-profile`."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ... import files
from ...text_table import aligned
from . import host, matching, plan, steps, trace, writing
from .kinds import UNKNOWN, kind_of
from .trace import TraceError

_BASES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm"}
_PLAIN = "vllm_sync"  # of an engine that has no profile here
_PAUSE_US = {True: 5.0, False: 1.5}  # longest pause that belongs to an op: in a graph, and between kernels launched one by one
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)


def run(options: argparse.Namespace) -> int:
    if not _NAME.fullmatch(options.engine):
        raise TraceError(f"found the engine name '{options.engine}'; expected letters, digits, '.', '_', '+' and '-'")
    batch = steps.parse_batch(options.batch) if options.batch else None
    requests = steps.Requests(options.requests) if options.requests else None
    timings = host.read_timings(options.timings) if options.timings else []
    served = host.read_timings(options.served) if options.served else []
    target = options.output / options.engine
    files.check(target, writing.PROVIDER, force=options.force)
    imported = _Import(options)
    for path in options.traces:
        found = trace.read(path)
        imported.add(found, steps.find(found, requests=requests, batch=batch, context=options.context))
    imported.finish(timings, served, target)
    return 0


class _Import:
    """What is known after each trace."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        base = re.split(r"[-_.\d]", options.engine.lower())[0]
        self.base = options.profile or _BASES.get(base, _PLAIN)
        self.matches: list[matching.StepMatch] = []
        self.left_out: collections.Counter[str] = collections.Counter()  # steps by reason
        self.traces: list[dict[str, Any]] = []
        self.plans: plan.Plans | None = None
        self.device = ""
        self.is_packed: bool | None = {"packed": True, "split": False, None: None}[options.attention]
        self.waiting: list[tuple[trace.Trace, list[steps.EngineStep]]] = []
        self.machine = options.machine or ""

    def add(self, found: trace.Trace, engine_steps: list[steps.EngineStep]) -> None:
        """Traces wait for one that says how attention takes several sequences."""
        self.waiting.append((found, engine_steps))
        if self.is_packed is None:
            self.is_packed = steps.is_packed(engine_steps)
        if self.is_packed is not None:
            self._match_waiting()

    def _match_waiting(self) -> None:
        for found, engine_steps in self.waiting:
            self._match(found, engine_steps)
        self.waiting.clear()

    def _match(self, found: trace.Trace, engine_steps: list[steps.EngineStep]) -> None:
        if self.plans is None:
            self._deploy(found)
        assert self.plans is not None
        first_error: TraceError | None = None
        used = 0
        for step in engine_steps:
            if step.batch is None:
                self.left_out[step.batch_from] += 1
                continue
            try:
                self.matches.append(matching.match(step, self.plans.ops(step.batch), _PAUSE_US[step.is_graph]))
                used += 1
            except TraceError as error:
                first_error = first_error or error
                self.left_out[str(error).removeprefix(f"{found.path}: ")] += 1
        if not used:
            if first_error is not None:
                raise first_error
            raise TraceError(f"{found.path}: found {len(engine_steps)} steps and used none: {'; '.join(self.left_out)}")
        self.traces.append({"file": found.path.name, "sha256": writing.fingerprint(found.path), "steps": used,
                            "kernels": len(found.kernels)} | ({"rank": found.rank} if found.rank is not None else {}))  # fmt: skip

    def _deploy(self, found: trace.Trace) -> None:
        options = self.options
        known = plan.DEVICES.get(found.device)
        if not self.machine and known is None:
            raise TraceError(f"{found.path}: found the GPU '{found.device}'; expected --machine, or one of {', '.join(plan.DEVICES)}")
        if not self.machine and known is not None:
            self.machine = known[1] if options.tp * options.ep == 1 else known[2]
        self.device = found.device or self.machine
        deployed = plan.Deployed(options.model, self.machine, self.base, options.tp, options.ep, options.weights, options.kv_cache, bool(self.is_packed))
        self.plans = plan.Plans(deployed)

    def finish(self, timings: Sequence[host.Timing], served: Sequence[host.Timing], target: pathlib.Path) -> None:
        self._match_waiting()
        assert self.plans is not None
        num_ops = {timing.batch: len(self.plans.ops(timing.batch)) for timing in timings}
        figures = host.host_of(self.matches, timings, num_ops)
        provider = writing.provider_of(self.matches)
        about = {"provider": self.options.engine, "device": self.device, "model": self.options.model, "traces": self.traces}
        if self.options.timings:
            about["timings"] = {"file": self.options.timings.name, "sha256": writing.fingerprint(self.options.timings)}
        counts = writing.write_provider(target, provider, about, force=self.options.force)
        profile = target.with_name(f"{self.options.engine}.engine.yaml")
        name = self.options.engine.replace(".", "_")
        text = functools.partial(writing.profile_text, name, self.base, figures, is_packed=bool(self.is_packed))
        files.write_text(profile, text())
        if served:
            learned = dataclasses.replace(self.plans.deployed, profile=str(profile.resolve()), is_packed=False)
            serving = host.serve_base(learned.scenario(str(target.resolve())), served)
            files.write_text(profile, text(serve_base=serving))
        print(coverage_text(self.matches, self.left_out, provider, counts))
        print(host_text(figures, has_timings=bool(timings)))
        if served:
            print(f"a load: {serving.seconds * 1e3:.1f} ms a step more than by itself")
        print(next_text([each.step.batch for each in self.matches if each.step.batch is not None]))
        print(f"written: {target}, {profile}; in a scenario: provider: {target}, engine: {{profile: {profile}}}")


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Shares of the GPU time of steps."""

    matched: float
    by: dict[str, float]  # name, shapes, order
    inputs: float  # before the model and after its sampling
    left: float


def coverage(matches: Sequence[matching.StepMatch]) -> Coverage:
    """Of kernels' time: what is in ops of the plan, what prepares inputs, what is neither."""
    by: dict[str, float] = collections.defaultdict(float)
    inputs = left = 0.0
    for each in matches:
        for op in each.ops:
            for name, time in op.by.items():
                by[name] += time
        for kernel in each.outside:
            if kernel.is_copy or kind_of(kernel.name, kernel.op) != UNKNOWN:
                inputs += kernel.duration
            else:
                left += kernel.duration
        left += sum(kernel.duration for kernel in each.left)
    total = sum(by.values()) + inputs + left
    return Coverage(sum(by.values()) / total, {key: value / total for key, value in by.items()}, inputs / total, left / total)


def coverage_text(matches: Sequence[matching.StepMatch], reasons: dict[str, int], provider: writing.Provider, counts: dict[str, int]) -> str:
    shares = coverage(matches)
    parts = ", ".join(f"{share:.1%} by {name}" for name, share in shares.by.items())
    graphs = sum(each.step.is_graph for each in matches)
    lines = [
        f"{len(matches)} steps: {graphs} in graphs, {len(matches) - graphs} eager; their batches from "
        f"{', '.join(sorted({each.step.batch_from for each in matches}))}",
        f"GPU time matched to ops: {shares.matched:.1%} ({parts}); inputs of the step {shares.inputs:.1%}; not matched {shares.left:.1%}",
    ]
    lines += [f"left out: {count} steps: {reason}" for reason, count in reasons.items()]
    unknown: dict[str, float] = collections.defaultdict(float)
    for each in matches:
        for kernel in [*each.left, *(k for k in each.outside if not k.is_copy and kind_of(k.name, k.op) == UNKNOWN)]:
            unknown[kernel.name[:100]] += kernel.duration
    lines += [f"not matched: {time:.1f} us of {name}" for name, time in sorted(unknown.items(), key=lambda item: -item[1])[:12]]
    lines += [f"no row: {count} ops: {reason}" for reason, count in provider.unpriced.items()]
    lines += [
        f"{kernel} ({dtype}) holds {included}: the engine has no kernel of its own for it" for kernel, dtype, included in sorted(provider.includes)
    ]
    table = []
    for name, count in counts.items():
        rows = [(call, row) for call, row in provider.rows.items() if call[0] == name]
        samples = sum(len(row.times) for _, row in rows)
        table.append((name, str(count), str(samples), _ranges([call[2] for call, _ in rows], name)))
    return "\n".join([*lines, aligned(("table", "rows", "samples", "sizes"), table, right={1, 2})])


def _ranges(dims: Sequence[tuple[int, ...]], kernel: str) -> str:
    names = next(spec["dims"] for spec in writing._core.kernel_specs() if spec["name"] == kernel)
    parts = []
    for name, values in zip(names, zip(*dims)):
        low, high = min(values), max(values)
        if name != "window":
            parts.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    return ", ".join(parts)


def host_text(figures: host.Host, *, has_timings: bool) -> str:
    warning = "" if has_timings else "\nthe profiler slows the host; --timings with steps of the same engine without it gives the host's own times"
    planning = f", {figures.new_attention.seconds * 1e3:.1f} ms more where attention has a new shape" if figures.new_attention.seconds else ""
    planning += f", {figures.new_rows.seconds * 1e3:.1f} ms more where a prompt brings a new number of rows" if figures.new_rows.seconds else ""
    stall = f", of them {figures.stall.seconds * 1e3:.1f} ms in one call while it launches" if figures.stall.seconds else ""
    return (
        f"host: {figures.eager_launch.seconds * 1e6:.1f} us for each op launched, {figures.scheduler_base.seconds * 1e6:.0f} us a step and "
        f"{figures.scheduler_per_sequence.seconds * 1e6:.2f} us a sequence besides{stall}{planning}, "
        f"{'beside' if figures.is_async else 'before and after'} the GPU; {figures.pause_us:.2f} us between kernels{warning}"
    )


def next_text(batches: Sequence[steps.BatchOf]) -> str:
    wanted = writing.wanted_next(batches)
    return (
        "\n".join(["to trace next, the widest gap first:", *(f"  {each}" for each in wanted)]) if wanted else "no gap between traced batches is wide"
    )
