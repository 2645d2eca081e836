"""Reads the run directory that `orrery run` writes, and says precisely what is wrong with one that is not."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import numpy as np

from .. import run_files
from ..caching import cached_property
from . import columns, quantities, resolved_scenario, steps

REQUEST_COLUMNS = (
    "id",
    "replica",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "num_preemptions",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
)
UNUSED_COLUMNS = ("cached_tokens", "num_preemptions")  # checked and not kept
# Of a disaggregated service; empty for requests that were not handed over.
TRANSFER_COLUMNS = (
    "decode_replica",
    "transfer_bytes",
    "prefill_end_s",
    "transfer_start_s",
    "transfer_end_s",
    "decode_start_s",
    "second_token_s",
    "exposed_transfer_s",
)
QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
_NEW_QUANTILES = ("p95",)  # which runs of earlier versions have not
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
TRANSFER_TIMES = ("second_token_s", "wait_s", "time_s", "exposed_s")
MEMORY_PARTS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "graphs_bytes", "communication_bytes")
PHASES = ("ramp_s", "drain_s", "run_s")
BASES = ("measured", "interpolated", "borrowed", "roofline")
_SUMMARY_NUMBERS = (
    "requests",
    "output_tokens",
    "prompt_tokens",
    "output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "requests_per_s",
    "goodput",
    "slo_attainment",
    "preemptions",
    "num_steps",
    "duration_s",
    "num_gpus",
    "num_kv_blocks",
)
_OPTIONAL_NUMBERS = ("cached_tokens", "mean_batch", "seed", "nodes_per_replica")  # which runs of earlier versions have not
_STEP_NUMBERS = ("prefill_tokens", "num_prefills", "num_decodes", "decode_context", "makespan_s")


@dataclasses.dataclass(frozen=True)
class Span:
    """One bar of the step trace. Times in seconds from the start of the step."""

    row: str
    is_link: bool
    name: str
    kind: str  # kernel, comm, host or link
    basis: str  # measured, interpolated, roofline or ""
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Run:
    directory: pathlib.Path
    scenario: dict
    scenario_text: str
    summary: dict
    requests: dict[str, np.ndarray]  # one array per column, in file order
    steps: steps.Steps
    spans: tuple[Span, ...]
    slo_s: dict[str, float]  # subset of ttft, tpot, e2e
    warmup_requests: int
    drain_requests: int

    @cached_property
    def measured(self) -> dict[str, np.ndarray]:
        """The requests after the warm-up and before the drain, of which all figures are."""
        if not self.warmup_requests and not self.drain_requests:
            return self.requests
        is_measured = are_measured(self.requests["id"], self.warmup_requests, self.drain_requests)
        return {name: values[is_measured] for name, values in self.requests.items()}

    @cached_property
    def transfers(self) -> dict[str, np.ndarray]:
        """One row per measured request that was handed over; empty when none can be."""
        if "disaggregation" not in self.summary:
            return {}
        is_moved = np.isfinite(self.measured["decode_replica"])
        return {name: self.measured[name][is_moved] for name in TRANSFER_COLUMNS}


def read(directory: pathlib.Path) -> Run:
    """Everything a report needs. Throws ValueError naming the file and what it lacks."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: found no such directory, expected one written by 'orrery run'")
    missing = [name for name in run_files.NAMES if not (directory / name).is_file()]
    if missing:
        raise ValueError(
            f"{directory}: no file {', '.join(missing)}; expected a directory written by 'orrery run'"
        )
    scenario_path = directory / "scenario.yaml"
    try:
        scenario = resolved_scenario.read(scenario_path)
        scenario_text = scenario_path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{scenario_path}: not UTF-8 text: {error}") from None
    summary = _read_summary(directory / "summary.json")
    requests = _read_requests(directory / "requests.csv", "disaggregation" in summary)
    return Run(
        directory=directory,
        scenario=scenario,
        scenario_text=scenario_text,
        summary=summary,
        requests=requests,
        steps=steps.read(
            directory / "steps.csv",
            begin_s=float(requests["arrival_s"].min()),
            end_s=float(requests["finish_s"].max()),
            num_replicas=_num_replicas(requests, summary),
        ),
        spans=_read_trace(directory / "step.trace.json"),
        slo_s=_read_slo(scenario_path, scenario),
        warmup_requests=warmup_requests(scenario),
        drain_requests=drain_requests(scenario),
    )


def check_counts(run: Run) -> None:
    """Raises ValueError when the tables of a directory without SHA256SUMS do not have what its summary counts.

    What agrees in number may still be of different runs.
    """
    cut = run.warmup_requests + run.drain_requests
    for name, found, expected, what in (
        ("requests.csv", len(run.requests["id"]), run.summary["requests"] + cut, "requests, warm-up and drain included"),
        ("steps.csv", int(run.steps.num_steps.sum()), run.summary["num_steps"], "engine steps"),
    ):
        # The summary leaves the steps of the warm-up and of the drain out.
        if found < expected or (found > expected and not (cut and name == "steps.csv")):
            raise ValueError(
                f"{run.directory / name}: found {found:,} {what}; summary.json and scenario.yaml count {expected:,}: "
                "the table was cut or is of another run"
            )
    if str(run.summary.get("question")) != str(run.scenario.get("question")):
        raise ValueError(f"{run.directory / 'scenario.yaml'}: asks another question than summary.json: it is of another run")


def _read_requests(path: pathlib.Path, is_apart: bool) -> dict[str, np.ndarray]:
    names = REQUEST_COLUMNS + (TRANSFER_COLUMNS if is_apart else ())
    found = columns.packed(path, names, may_be_empty=("tpot_s", *TRANSFER_COLUMNS))
    return {name: values for name, values in found.items() if name not in UNUSED_COLUMNS}


def _num_replicas(requests: dict[str, np.ndarray], summary: dict) -> int:
    named = int(requests["replica"].max()) + 1
    apart = summary.get("disaggregation")
    return max(named, apart["prefill"]["replicas"] + apart["decode"]["replicas"]) if apart else named


def warmup_requests(scenario: dict) -> int:
    """How many requests at the start are in no figure."""
    return _count(scenario, "warmup_requests")


def drain_requests(scenario: dict) -> int:
    """How many requests at the end are in no figure."""
    return _count(scenario, "drain_requests")


def _count(scenario: dict, key: str) -> int:
    workload = scenario.get("workload")
    text = str(workload.get(key, "0")) if isinstance(workload, dict) else "0"
    return int(text) if text.isdigit() else 0


def are_measured(ids: np.ndarray, warmup: int, drain: int) -> np.ndarray:
    """Which of all requests, by id, count in figures."""
    return (ids >= warmup) & (ids < len(ids) - drain)


def _read_json(path: pathlib.Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"{path}: not JSON: {error}") from None


def _read_summary(path: pathlib.Path) -> dict:
    summary = _read_json(path)
    if not isinstance(summary, dict):
        raise ValueError(f"{path}: found {type(summary).__name__}, expected an object")
    for key in _SUMMARY_NUMBERS:
        _number(path, summary, key)
    step = _object(path, summary, "step") if "step" in summary else {}
    for parent, prefix, optional in ((summary, "", _OPTIONAL_NUMBERS), (step, "step.", _STEP_NUMBERS)):
        for key in set(optional) & set(parent):
            _number(path, parent, key, prefix=prefix)
    for key in ("share", "exposed_share") if "communication" in step else ():
        _number(path, _object(path, step, "communication"), key, prefix="step.communication.")
    for key in LATENCIES:
        nullable = key in ("tpot_s", "itl_s")
        quantiles = _object(path, summary, key)
        _read_quantiles(path, quantiles, key, nullable=nullable)
    _object(path, summary, "basis").setdefault("borrowed", 0.0)  # older runs called borrowed rows interpolated
    if summary.get("phases") is not None:  # runs of earlier versions say nothing of them
        for name in PHASES:
            _number(path, _object(path, summary, "phases"), name, prefix="phases.")
    for key, parts in (
        ("kv_utilisation", ("mean", "max")),
        ("basis", BASES),
        ("memory_per_gpu", MEMORY_PARTS + ("hbm_bytes",)),
    ):
        for name in parts:
            _number(path, _object(path, summary, key), name, prefix=key + ".")
    if "disaggregation" in summary:
        _check_disaggregation(path, _object(path, summary, "disaggregation"))
    if "attention_ffn" in summary:
        _check_attention_ffn(path, _object(path, summary, "attention_ffn"))
    if "expert_balance" in summary:
        _check_expert_balance(path, _object(path, summary, "expert_balance"))
    if "kv_tiers" in summary:
        _check_kv_tiers(path, _object(path, summary, "kv_tiers"))
    if "speculative" in summary:
        _check_speculative(path, _object(path, summary, "speculative"))
    if "sessions" in summary:
        _check_sessions(path, _object(path, summary, "sessions"))
    if "autoscaling" in summary:
        _check_autoscaling(path, _object(path, summary, "autoscaling"))
    breakdown = summary.get("step_breakdown")
    if not isinstance(breakdown, list):
        raise ValueError(f"{path}: found no list 'step_breakdown'")
    for i, entry in enumerate(breakdown):
        prefix = f"step_breakdown[{i}]."
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: found {entry!r} at step_breakdown[{i}], expected an object")
        _number(path, entry, "time_s", prefix=prefix)
        for name in ("op", "kind"):
            if not isinstance(entry.get(name), str):
                raise ValueError(f"{path}: found no text '{prefix}{name}'")
    return summary


def _check_disaggregation(path: pathlib.Path, apart: dict) -> None:
    for side in ("prefill", "decode"):
        part = _object(path, apart, side)
        for name in ("replicas", "num_gpus", "busy", "num_steps", "mean_batch", "num_kv_blocks"):
            _number(path, part, name, prefix=f"disaggregation.{side}.")
        for name in MEMORY_PARTS + ("hbm_bytes",):
            _number(path, _object(path, part, "memory_per_gpu"), name, prefix=f"disaggregation.{side}.memory_per_gpu.")
        _number(path, _object(path, part, "kv_utilisation"), "mean", prefix=f"disaggregation.{side}.kv_utilisation.")
        if "device" in part:
            _check_setting(path, part, f"disaggregation.{side}.")
    for name in {"usd_per_hour", "usd_per_million_output_tokens"} & set(apart):
        _number(path, apart, name, prefix="disaggregation.", nullable=True)
    moved = _object(path, apart, "transfer")
    for name in ("count", "bytes", "exposed_share"):
        _number(path, moved, name, prefix="disaggregation.transfer.")
    for key in TRANSFER_TIMES:
        _read_quantiles(path, _object(path, moved, key), f"disaggregation.transfer.{key}")


def _check_attention_ffn(path: pathlib.Path, apart: dict) -> None:
    for side in ("attention", "ffn"):
        part = _object(path, apart, side)
        _number(path, part, "num_gpus", prefix=f"attention_ffn.{side}.")
        _check_setting(path, part, f"attention_ffn.{side}.")
    for name in ("usd_per_hour", "usd_per_million_output_tokens"):
        _number(path, apart, name, prefix="attention_ffn.", nullable=True)


def _check_setting(path: pathlib.Path, side: dict, prefix: str) -> None:
    """Of a side with a machine, a provider or a price of its own."""
    for name in ("device", "machine", "provider"):
        if not isinstance(side.get(name), str):
            raise ValueError(f"{path}: found no text '{prefix}{name}'")
    _number(path, side, "usd_per_hour", prefix=prefix, nullable=True)
    if side.get("energy") is not None:
        _number(path, _object(path, side, "energy"), "j_per_output_token", prefix=f"{prefix}energy.")
    texts = ("provider", "device", "origin")
    tables = side.get("tables")
    if not isinstance(tables, list) or not all(
        isinstance(table, dict) and all(isinstance(table.get(name), str) for name in texts) and isinstance(table.get("kernels"), list) for table in tables
    ):
        raise ValueError(f"{path}: found no list of tables '{prefix}tables'")


def _read_quantiles(path: pathlib.Path, found: dict, key: str, *, nullable: bool = False) -> None:
    for name in QUANTILES:
        if name in _NEW_QUANTILES:
            found.setdefault(name, None)
        _number(path, found, name, prefix=key + ".", nullable=nullable or name in _NEW_QUANTILES)


def _check_kv_tiers(path: pathlib.Path, behind: dict) -> None:
    for name in ("exposed_s", "exposed_share", "recomputed_tokens"):
        _number(path, behind, name, prefix="kv_tiers.")
    tiers = behind.get("tiers")
    if not isinstance(tiers, list):
        raise ValueError(f"{path}: found no list 'kv_tiers.tiers'")
    for i, tier in enumerate(tiers):
        if not isinstance(tier, dict) or not isinstance(tier.get("name"), str):
            raise ValueError(f"{path}: found no text 'kv_tiers.tiers[{i}].name'")
        for name in ("hit_tokens", "hit_rate", "loaded_bytes", "written_bytes", "held_bytes", "capacity_bytes"):
            _number(path, tier, name, prefix=f"kv_tiers.tiers[{i}].")


def _check_expert_balance(path: pathlib.Path, experts: dict) -> None:
    for name in ("balance", "num_rebalances", "moved_bytes", "held_up_s"):
        _number(path, experts, name, prefix="expert_balance.")
    moves = experts.get("rebalances")
    if not isinstance(moves, list) or not all(isinstance(move, dict) for move in moves):
        raise ValueError(f"{path}: found no list 'expert_balance.rebalances' of objects")
    for i, move in enumerate(moves):
        for name in ("replica", "time_s", "step", "slots", "bytes", "held_up_s", "balance_before", "balance_after"):
            _number(path, move, name, prefix=f"expert_balance.rebalances[{i}].")


def _check_speculative(path: pathlib.Path, drafts: dict) -> None:
    for name in ("num_speculative_tokens", "acceptance_length", "draft_share", "draft_weights_bytes"):
        _number(path, drafts, name, prefix="speculative.")
    for name in ("method", "draft"):
        if not isinstance(drafts.get(name), str):
            raise ValueError(f"{path}: found no text 'speculative.{name}'")


def _check_sessions(path: pathlib.Path, sessions: dict) -> None:
    for name in ("count", "mean_turns", "sessions_per_s", "later_cached_share"):
        _number(path, sessions, name, prefix="sessions.")
    for key in ("duration_s", "first_ttft_s", "later_ttft_s"):
        _read_quantiles(path, _object(path, sessions, key), f"sessions.{key}")


def _check_autoscaling(path: pathlib.Path, scaling: dict) -> None:
    for name in ("min_replicas", "max_replicas", "mean_replicas", "most_replicas", "starts", "stops", "gpu_hours"):
        _number(path, scaling, name, prefix="autoscaling.")
    _number(path, scaling, "usd", prefix="autoscaling.", nullable=True)
    counts = scaling.get("counts")
    rows = counts if isinstance(counts, list) else []
    if not rows or not all(isinstance(row, list) and len(row) == 4 and all(map(quantities.is_number, row)) for row in rows):
        raise ValueError(f"{path}: found no list 'autoscaling.counts' of [time, ready, starting, draining]")


def _object(path: pathlib.Path, parent: dict, key: str) -> dict:
    if not isinstance(parent.get(key), dict):
        raise ValueError(f"{path}: found no object '{key}'")
    return parent[key]


def _number(path: pathlib.Path, parent: dict, key: str, *, prefix: str = "", nullable: bool = False) -> None:
    if key not in parent:
        raise ValueError(f"{path}: found no '{prefix}{key}', expected a number")
    value = parent[key]
    if nullable and (value is None or (isinstance(value, float) and math.isnan(value))):
        parent[key] = None
        return
    if not quantities.is_number(value):
        raise ValueError(f"{path}: found {value!r} for '{prefix}{key}', expected a number")
    if value < 0:
        raise ValueError(f"{path}: found {value!r} for '{prefix}{key}', expected no negative number")


def _read_trace(path: pathlib.Path) -> tuple[Span, ...]:
    """Complete ("X") events of a Chrome trace, ordered by start; "M" events name the rows."""
    document = _read_json(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ValueError(f"{path}: found no list 'traceEvents'")
    processes: dict = {}
    threads: dict = {}
    complete = []
    for i, event in enumerate(events):
        if not isinstance(event, dict) or "ph" not in event:
            raise ValueError(f"{path}: found no 'ph' in traceEvents[{i}]")
        if event["ph"] == "M" and isinstance(event.get("args"), dict):
            if event.get("name") == "process_name":
                processes[_key(event.get("pid"))] = str(event["args"].get("name"))
            elif event.get("name") == "thread_name":
                threads[_key(event.get("pid")), _key(event.get("tid"))] = str(event["args"].get("name"))
        elif event["ph"] == "X":
            if not (quantities.is_number(event.get("ts")) and quantities.is_number(event.get("dur"))):
                raise ValueError(f"{path}: found no number 'ts' or 'dur' in traceEvents[{i}]")
            complete.append(event)
    spans = []
    for event in sorted(complete, key=lambda e: e["ts"]):
        pid, tid = _key(event.get("pid")), _key(event.get("tid"))
        process = processes.get(pid, f"rank {pid}")
        thread = threads.get((pid, tid), f"stream {tid}")
        is_link = process.startswith("link")
        args = event["args"] if isinstance(event.get("args"), dict) else {}
        kind = "link" if is_link else str(args.get("kind", event.get("cat", "kernel")))
        spans.append(
            Span(
                row=thread if is_link else f"{process} · {thread}",
                is_link=is_link,
                name=str(event.get("name", "")),
                kind="comm" if kind.startswith("comm") else kind,
                basis=str(args.get("basis", "")),
                start_s=event["ts"] * 1e-6,
                end_s=(event["ts"] + event["dur"]) * 1e-6,
            )
        )
    return tuple(spans)


def _key(value: object) -> str:
    """Of a process or thread: numbers and names in traces of this project, whatever JSON has in others."""
    return str(value)


def _read_slo(path: pathlib.Path, scenario: dict) -> dict[str, float]:
    slo = scenario.get("slo")
    limits = {}
    for name in ("ttft", "tpot", "e2e"):
        text = slo.get(name) if isinstance(slo, dict) else None
        if isinstance(text, dict):  # limits of percentiles, beside that of each request
            text = text.get("each")
        if not text or text in ("null", "~", "none", "inf", ".inf"):
            continue
        try:
            limit = quantities.parse_seconds(text)
        except ValueError as error:
            raise ValueError(f"{path}: slo.{name}: {error}") from None
        if limit < 1e17:  # the engine spells "no limit" as an absurdly long one
            limits[name] = limit
    return limits
