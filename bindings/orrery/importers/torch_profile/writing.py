"""A provider and an engine profile from matched steps."""

from __future__ import annotations

import collections
import csv
import dataclasses
import hashlib
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from ... import _core, files
from ...emit import yaml_text
from .host import Figure, Host
from .matching import StepMatch
from .plan import base_profile, plain
from .steps import BatchOf
from .trace import TraceError

PROVIDER = files.Kind("directory of tables", required=("meta.yaml",), names=("*.csv", "meta.yaml"))
_ATTENTION = ("attention_prefill", "attention_decode")
Call = tuple[str, str, tuple[int, ...]]  # kernel, dtype, dims in the order of the kernel's own


@dataclasses.dataclass
class Row:
    """Times of one call, us, by the way in which it was launched."""

    graph: list[float] = dataclasses.field(default_factory=list)
    eager: list[float] = dataclasses.field(default_factory=list)

    @property
    def launched(self) -> str:
        return "graph" if self.graph else "eager"

    @property
    def times(self) -> list[float]:
        return self.graph or self.eager


@dataclasses.dataclass
class Provider:
    rows: dict[Call, Row]
    includes: set[tuple[str, str, str]]  # kernel and dtype of rows, and the kernel without one of its own that they hold
    unpriced: collections.Counter[str]  # matched ops of which no row was made, by reason


def provider_of(matches: Sequence[StepMatch]) -> Provider:
    """Rows of all steps. Attention of prompts and decodes in one kernel makes no row, since it is of no single op of the plan."""
    specs = {spec["name"]: spec for spec in _core.kernel_specs()}
    rows: dict[Call, Row] = collections.defaultdict(Row)
    unpriced: collections.Counter[str] = collections.Counter()
    fused: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
    for each in matches:
        batch = each.step.batch
        is_mixed = batch is not None and bool(batch.prefill) and batch.num_decodes > 0
        for found in each.ops:
            op = found.op
            if op.kernel == "comm":
                unpriced["collectives (a machine's tables have them)"] += 1
                continue
            if is_mixed and op.kernel in _ATTENTION:
                unpriced["attention of prompts and decodes together"] += 1
                continue
            if found.time <= 0:
                unpriced["times below 0: wholly beside another kernel"] += 1
                continue
            sizes = dict(op.dims)
            call = (op.kernel, op.dtype, tuple(sizes[name] for name in specs[op.kernel]["dims"]))
            (rows[call].graph if each.step.is_graph else rows[call].eager).append(found.time)
        for op, holder in each.fused:
            if not (is_mixed and op.kernel in _ATTENTION) and holder.kernel != "comm":
                fused[op.kernel].add((holder.kernel, holder.dtype))
    with_rows = {kernel for kernel, _, _ in rows}
    includes = {(*holder, kernel) for kernel, holders in fused.items() if kernel not in with_rows for holder in holders}
    return Provider(dict(rows), includes, unpriced)


def write_provider(target: pathlib.Path, provider: Provider, about: dict[str, Any], *, force: bool) -> dict[str, int]:
    """Writes `<kernel>.csv`, includes.csv and meta.yaml; the number of rows of each table."""
    specs = {spec["name"]: spec for spec in _core.kernel_specs()}
    counts = collections.Counter(kernel for kernel, _, _ in provider.rows)
    if not counts:
        raise TraceError("found no op of which a row could be made; expected steps that match the plan")
    with files.publishing(target, PROVIDER, force=force) as folder:
        for kernel in sorted(counts):
            calls = sorted(call for call in provider.rows if call[0] == kernel)
            with (folder / f"{kernel}.csv").open("w", newline="", encoding="utf-8") as stream:
                out = csv.writer(stream, lineterminator="\n")
                out.writerow(["dtype", *specs[kernel]["dims"], "time_us", "spread", "samples", "launched"])
                for call in calls:
                    row = provider.rows[call]
                    out.writerow(
                        [call[1], *call[2], f"{statistics.median(row.times):.6g}", f"{_spread(row.times):.3g}", len(row.times), row.launched]
                    )
        if provider.includes:
            lines = [f"{kernel},{dtype},{included},0" for kernel, dtype, included in sorted(provider.includes)]
            (folder / "includes.csv").write_text("\n".join(["kernel,dtype,includes,floor_us", *lines]) + "\n", encoding="utf-8")
        meta = about | {
            "units": "time_us: microseconds of one op inside steps, the median of `samples`, pauses between its kernels included; spread: "
                     "interquartile range over it; launched: graph or eager, as most of the step's kernels were",
            "source": "orrery import torch-profile",
            "tables": {kernel: {"rows": counts[kernel]} for kernel in sorted(counts)},
        }  # fmt: skip
        (folder / "meta.yaml").write_text(yaml_text.block(meta), encoding="utf-8")
    return dict(counts)


def _spread(times: Sequence[float]) -> float:
    if len(times) < 4:
        return (max(times) - min(times)) / statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


def fingerprint(path: pathlib.Path) -> str:
    """SHA-256 of a file, its first 12 digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


# --- the engine profile


def profile_text(name: str, base: str, host: Host, *, is_packed: bool, serve_base: Figure | None = None) -> str:
    """The profile: what the trace says over what `base` has for the rest, each with its source."""
    content = base_profile(base)
    content["name"] = name
    section = content["host"]
    for key in ("graph_hop", "eager_hop", "serve_base", "serve_per_sequence", "prefill_base", "piece_launch"):
        section.pop(key, None)
    section["eager_launch"] = _figure(host.eager_launch) if host.eager_launch.seconds > 0 else section["eager_launch"]
    section["graph_node"] = {
        "value": "0 us",
        "source": f"contained in the rows, which hold the pauses between kernels (median {host.pause_us:.2f} us)",
    }
    section["scheduler_base"] = _figure(host.scheduler_base)
    section["scheduler_per_sequence"] = _figure(host.scheduler_per_sequence)
    if serve_base is not None:
        section["serve_base"] = _figure(serve_base)
    for key, figure in (("new_attention", host.new_attention), ("new_rows", host.new_rows)):
        section.pop(key, None)
        if figure.seconds > 0:
            section[key] = _figure(figure)
    content.pop("attention", None)
    if is_packed:
        content["attention"] = {"form": {"value": "packed", "source": "recorded shapes of attention: queries and keys of all sequences in one call"}}
    rows = "the rows are of kernels inside this engine's steps"
    section["prefill_base"] = _figure(host.prefill_base)
    if not name.startswith(base.split("_")[0]):  # of another engine
        unseen = "not in a trace of the GPU; orrery compare --fit finds it from a load on the server"
        content["front_end"] = {
            key: {"value": "0 us", "source": unseen} for key in ("per_request", "per_prompt_token", "per_output_token", "stream_latency")
        }
    content["kernel_time"] = {key: {"value": 1.0, "source": rows} for key in ("eager", "eager_moe", "graph")}
    content.pop("power_limit", None)
    content.pop("moe_tables", None)
    content["async_scheduling"] = {"value": host.is_async, "source": "the traced steps: whether one is launched while the one before computes"}
    content["launch_mode"] = host.launch_mode
    if host.launch_mode == "eager":
        for key in ("cuda_graphs", "max_piece_tokens"):
            content.pop(key, None)
    return f"# From traces of this engine, by orrery import torch-profile; what they do not show is of {base}.yaml.\n" + yaml_text.block(
        plain(content)
    )


def _figure(figure: Figure) -> dict[str, str]:
    return {"value": f"{figure.seconds * 1e6:.4g} us", "source": figure.source}


# --- what to profile next

_MOST_RATIO = 3.0  # between neighbouring points of a table, beyond which interpolation is a guess


def wanted_next(batches: Sequence[BatchOf], *, most_decodes: int = 256, most_context: int = 8192, most_prompt: int = 8192) -> list[str]:
    """Batches whose tracing would narrow the widest gaps: decodes, their context, tokens of a prompt."""
    decodes = [each for each in batches if each.num_decodes and not each.prefill]
    found: list[tuple[float, str]] = []
    counts = sorted({each.num_decodes for each in decodes})
    contexts = sorted({round(each.decode_context / each.num_decodes) for each in decodes})
    prompts = sorted({sum(query for query, _ in each.prefill) for each in batches if each.prefill})
    usual = contexts[len(contexts) // 2] if contexts else 1024
    for ratio, size in _gaps(counts, 1, most_decodes):
        found.append((ratio, f"{size} decodes of {usual} tokens each (between the traced {_listed(counts)})"))
    for ratio, size in _gaps(contexts, 128, most_context):
        found.append((ratio, f"decodes of {size} tokens each (between the traced {_listed(contexts)})"))
    for ratio, size in _gaps(prompts, 128, most_prompt):
        found.append((ratio, f"a prompt of {size} tokens (between the traced {_listed(prompts)})"))
    return [text for _, text in sorted(found, key=lambda item: -item[0])[:6]]


def _gaps(sizes: Sequence[int], least: int, most: int) -> list[tuple[float, int]]:
    """The ratio of neighbours too far apart, and a size between them; the ends count as wanted."""
    if not sizes:
        return [(most / least, most), (most / least, least)]
    found = [(sizes[0] / least, least)] if sizes[0] > least * _MOST_RATIO else []
    found += [(b / a, round((a * b) ** 0.5)) for a, b in zip(sizes, sizes[1:]) if b > a * _MOST_RATIO]
    return [*found, (most / sizes[-1], most)] if most > sizes[-1] * _MOST_RATIO else found


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "") if sizes else "none"
