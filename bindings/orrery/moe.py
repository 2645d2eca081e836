"""One layer of routed experts in different designs: time, memory, launches and host syncs.

    from orrery import moe

    print(moe.table(moe.designs("llama-4-scout-17b-16e", tokens=64)))
    print(moe.table(moe.ablation("llama-4-scout-17b-16e", tokens=64)))

A design is `padding`, `slicing`, `concatenation` or `shuffling` (docs/kernels/moe.md), of which the first and the last can
be held by a CUDA graph and the others read counts on the host in the middle of the layer, or `persistent`, one kernel
(docs/kernels/fused_moe.md).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from . import _core, launches
from .arguments import seconds, whole_number
from .simulation import TimelineTable, load, project_root
from .text_table import aligned

DESIGNS = ("padding", "slicing", "concatenation", "shuffling")


@dataclasses.dataclass(frozen=True, eq=False)
class MoeLayer:
    """A simulated layer. Memory, launches and syncs are those of the first rank."""

    label: str
    design: str
    model: str
    tokens: int  # of all ranks together
    mode: str  # graph or eager
    _result: _core.MoeLayerResult

    @property
    def duration_s(self) -> float:
        return self._result.duration_s

    @property
    def roofline_share(self) -> float:
        """Of the summed time of all ops, the share that stands on no measurement."""
        result = self._result
        total = result.measured_s + result.interpolated_s + result.borrowed_s + result.roofline_s
        return result.roofline_s / total if total > 0 else 0.0

    @property
    def weights_bytes(self) -> float:
        return self._result.weights_bytes

    @property
    def activations_bytes(self) -> float:
        """At their peak, with all rows that routing may need."""
        return self._result.activations_bytes

    @property
    def moved_bytes(self) -> float:
        """The least that the layer's kernels read and write."""
        return self._result.read_bytes + self._result.written_bytes

    @property
    def buffers_bytes(self) -> dict[str, float]:
        """What the layer as one kernel allocates on a GPU, any routing provided for, besides activations_bytes: rows, results,
        between_layers, tables, counters; empty of other designs."""
        return self._result.buffers_bytes

    @property
    def symmetric_layout_bytes(self) -> float:
        """Beside them FlashDMoE's layout of the same tokens in bf16, which drops rows beyond an expert's capacity: Size(L) of
        arXiv 2506.04667; 0 of other designs."""
        return self._result.symmetric_layout_bytes

    @property
    def num_kernels(self) -> int:
        """Launches; experts without rows are not launched by designs that know on the host."""
        return self._result.num_kernels

    @property
    def num_collectives(self) -> int:
        return self._result.num_collectives

    @property
    def num_syncs(self) -> int:
        """Of the host with the device, per layer."""
        return self._result.num_syncs

    @property
    def timeline(self) -> TimelineTable:
        return TimelineTable(self._result.timeline)

    @property
    def plan_text(self) -> str:
        """The plan on all ranks, one line per op."""
        return self._result.plan_text

    @property
    def whole_plan_text(self) -> str:
        """The plan of one rank, before it was split."""
        return self._result.whole_plan_text

    def to_dict(self) -> dict[str, Any]:
        names = ("label", "design", "model", "tokens", "mode", "duration_s", "roofline_share", "weights_bytes")
        more = ("activations_bytes", "buffers_bytes", "symmetric_layout_bytes", "moved_bytes", "num_kernels", "num_collectives", "num_syncs")
        return {name: getattr(self, name) for name in (*names, *more)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MoeLayer):
            return NotImplemented
        return self.to_dict() == other.to_dict() and self.plan_text == other.plan_text

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MoeLayer({self.model}, {self.tokens} tokens, {self.label}: {self.duration_s * 1e6:.1f} us)"


def of_scenario(
    scenario: _core.Scenario,
    *,
    tokens: int,
    mode: str | None = None,
    level: str = "all_ranks",
    imposes_scores: bool = False,
    label: str = "",
) -> MoeLayer:
    """The layer of a scenario's model, placement and design.

    `tokens` are those of all ranks of an instance. `mode` is graph or eager (None: a graph where one can
    hold the layer). With `imposes_scores` the plan has an input `imposed_scores` [tokens, experts] by which
    experts are chosen. Raises ScenarioError, and ValueError on a mode that cannot be or no tokens.
    """
    if mode is None:
        mode = "eager" if scenario.has_host_syncs else "graph"
    result = _core.moe_layer(scenario, tokens, mode, level, imposes_scores)
    return MoeLayer(label or scenario.moe_design, scenario.moe_design, scenario.model.name, tokens, mode, result)


def layer(
    model: str,
    *,
    tokens: int,
    design: str = "shuffling",
    streams: int = 1,
    fuse_scatter_add: bool = False,
    fuse_gather: bool = False,
    chunks: int = 1,
    weights: str = "bf16",
    machine: str = "single-h200",
    provider: str = "orrery",
    expert_load: str = "uniform",
    dp: int = 1,
    tp: int = 1,
    ep: int = 1,
    expert_comm: str | None = None,
    experts: str = "in_order",
    num_redundant_experts: int = 0,
    mode: str | None = None,
    level: str = "all_ranks",
    imposes_scores: bool = False,
    label: str = "",
    overrides: Iterable[str] = (),
) -> MoeLayer:
    """The layer of `model` (a name that `orrery models` lists, or a path) in a design.

    `weights` is the format of weights and activations: bf16, or fp8 with scales by row. `expert_load` is
    uniform, power_law_1.2 ..., "{zipf: 1.0}" or "{trace: FILE}"; `experts` is in_order, balanced or
    balanced_on_nodes or by_links, for ep above 1. With `chunks` above 1 a rank's tokens are cut into as many parts, of which
    one computes while others are on their way. Other keys of a scenario as `overrides`.
    Raises ScenarioError, and ValueError as of_scenario does.
    """
    if expert_comm is None:
        expert_comm = "eager" if dp > 1 else "all_to_all"
    keys = [
        f"model.config={model}",
        f"model.weights={weights}",
        f"model.activations={weights}",
        f"model.expert_load={expert_load}",
        f"machine={machine}",
        f"provider={provider}",
        f"placement={{dp: {dp}, tp: {tp}, ep: {ep}, expert_comm: {expert_comm}, "
        f"num_redundant_experts: {num_redundant_experts}}}",
        f"moe={{design: {design}, streams: {streams}, fuse_scatter_add: {str(fuse_scatter_add).lower()}, "
        f"fuse_gather: {str(fuse_gather).lower()}, "
        f"chunks: {chunks}, experts: {experts}}}",
        *overrides,
    ]
    scenario = load(project_root() / "scenarios" / "moe_scout_designs.yaml", overrides=keys)
    return of_scenario(
        scenario, tokens=tokens, mode=mode, level=level, imposes_scores=imposes_scores, label=label or design
    )


def designs(model: str, *, tokens: int, **keys: Any) -> list[MoeLayer]:
    """The layer in each of the four designs, and as one kernel where there is one for it; `keys` are those of `layer`."""
    return [layer(model, tokens=tokens, design=design, **keys) for design in DESIGNS] + persistent(model, tokens=tokens, **keys)


def persistent(model: str, *, tokens: int, **keys: Any) -> list[MoeLayer]:
    """The layer as one kernel, or none where that does not take the model, its format or its placement."""
    return _persistent(model, tokens=tokens, **keys)[0]


def _persistent(model: str, *, tokens: int, **keys: Any) -> tuple[list[MoeLayer], str]:
    """persistent(), and why it is left out where it is."""
    alone = {**keys, "expert_comm": "all_to_all", "streams": 1, "chunks": 1}  # it sends rows itself, on one stream
    try:
        return [layer(model, tokens=tokens, design="persistent", **alone)], ""
    except _core.ScenarioError as error:
        _, named, reason = str(error).partition("design persistent: ")
        if not named:
            raise
        return [], reason


def ablation(model: str, *, tokens: int, fuses: bool = False, **keys: Any) -> list[MoeLayer]:
    """The shuffling layer in a graph with the shared expert on a second stream, then without one thing each.

    `fuses`: the first has the scatter-add in the second grouped gemm, for models with a shared expert. `keys`
    are those of `layer`.
    """
    whole = {"design": "shuffling", "streams": 2, "fuse_scatter_add": fuses, "mode": "graph"}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("all of it", {}),
        ("one stream", {"streams": 1}),
        ("launched one by one", {"mode": "eager"}),
        ("a host sync and slices for each expert", {"design": "concatenation", "fuse_scatter_add": False, "mode": "eager"}),
        ("a host sync and a gemm for each expert", {"design": "slicing", "fuse_scatter_add": False, "mode": "eager"}),
        ("padding", {"design": "padding", "fuse_scatter_add": False}),
    ]
    if fuses:
        changes.insert(1, ("scatter-add of its own", {"fuse_scatter_add": False}))
    return [layer(model, tokens=tokens, label=label, **{**keys, **whole, **change}) for label, change in changes]


def table(layers: Sequence[MoeLayer]) -> str:
    """Time against the first, memory, launches and syncs in plain text."""
    header = ("", "mode", "us", "times", "activations MB", "moved MB", "launches", "collectives", "syncs", "roofline")
    rows = [
        (
            found.label,
            found.mode,
            f"{found.duration_s * 1e6:.1f}",
            f"{found.duration_s / layers[0].duration_s:.2f}",
            f"{found.activations_bytes / 1e6:.2f}",
            f"{found.moved_bytes / 1e6:.1f}",
            str(found.num_kernels),
            str(found.num_collectives),
            str(found.num_syncs),
            f"{found.roofline_share:.0%}",
        )
        for found in layers
    ]
    return aligned(header, rows, right=range(2, len(header)))


def memory(one: MoeLayer) -> str:
    """What the layer as one kernel allocates on each GPU, in a line of plain text; empty of other designs."""
    found = one.buffers_bytes
    if not found:
        return ""
    mib = {name: f"{size / 2**20:,.1f}" for name, size in found.items()}
    tables = f"{(found['tables'] + found['counters']) / 2**20:,.1f}"
    return (f"{one.label} allocates {sum(found.values()) / 2**20:,.1f} MiB on each GPU: rows {mib['rows']}, results {mib['results']}, "
            f"between the layers {mib['between_layers']}, tables and counters {tables}; "
            f"FlashDMoE's layout {one.symmetric_layout_bytes / 2**20:,.1f}")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LateRank:
    """A layer with a rank that comes late, simulated tile by tile; nothing of it was measured."""

    delay_s: float
    rank: int
    on_time_s: float
    kernel_s: float  # it launches so much later
    stalled_s: float  # and its SMs stand still as long in the middle
    bulk_on_time_s: float  # the same tiles between two exchanges that wait for all ranks
    bulk_s: float  # it comes so late to each

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def late_rank(one: MoeLayer, *, delay_s: float, rank: int = 0) -> LateRank:
    """What the layer as one kernel takes with one rank late. Raises ValueError for other designs, a layer of one rank, a delay
    that is negative and a rank that is not there."""
    tiles = _tiles_of_ranks(one, "a rank that is late")
    begin = {"begin_delays_s": {rank: delay_s}}
    both = {**begin, "stalls_s": {rank: delay_s}}
    calls = ({}, begin, both, {"bulk_synchronous": True}, {**both, "bulk_synchronous": True})
    return LateRank(delay_s, rank, *(_core.moe_tiles(**tiles, **call)["duration_s"] for call in calls))


def stragglers(one: MoeLayer, *, jitter: str = "supercomputer") -> dict[str, dict[str, float]]:
    """on_time_s, median_s and p95_s of the layer with ranks late as published (arXiv 2506.04667, Table 2; supercomputer or vm): as
    one `kernel`, `stalled` in its middle as well, and `bulk_synchronous`. Simulated (sim/cost/moe_stragglers.h). Raises ValueError
    as late_rank does."""
    return _core.moe_stragglers(**_tiles_of_ranks(one, "ranks that are late"), jitter=jitter)


def _tiles_of_ranks(one: MoeLayer, what: str) -> dict[str, Any]:
    tiles = dict(one._result.tiles)
    if not tiles or tiles["ranks"] < 2:
        raise ValueError(f"{what}: found {one.label} of one rank or of several kernels, expected design persistent with dp and ep above 1")
    if tiles.pop("is_fp8"):
        raise ValueError(f"{what}: found {one.label} with fp8 experts, whose tiles are not simulated; expected bf16")
    return tiles


@dataclasses.dataclass(frozen=True)
class OnHosts:
    """A layer whose ranks are on several hosts, simulated tile by tile as on one; nothing of it was measured."""

    hosts: int
    nic_queue: int  # messages of a rank that are not acknowledged, at most; 0: any number
    nic_bytes_per_s: float
    nic_latency_s: float  # one way
    one_host_s: float
    duration_s: float
    most_outstanding: int  # messages at once

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def on_hosts(one: MoeLayer, *, hosts: int, nic_queue: int = 0) -> OnHosts:
    """The layer as one kernel with as many of its ranks on each of `hosts` of the machine, rows between them by its network cards
    (sim/cost/moe_tiles.h, MoeNetwork). Raises ValueError for other designs, a layer of one rank, ranks that do not divide over
    hosts, a negative queue and a machine without a network."""
    tiles = _tiles_of_ranks(one, "several hosts")
    network = one._result.network
    if not network:
        raise ValueError("several hosts: found a machine without a network, expected one that has it, as h200-cluster")
    found = _core.moe_tiles(**tiles, **network, hosts=hosts, nic_queue=nic_queue)
    return OnHosts(
        hosts, nic_queue, network["nic_bytes_per_s"], network["nic_latency_s"], _core.moe_tiles(**tiles)["duration_s"],
        found["duration_s"], int(found["most_outstanding"]),
    )  # fmt: skip


def hosts_text(found: OnHosts) -> str:
    """In a line of plain text."""
    most = f"at most {found.nic_queue:,} messages" if found.nic_queue else "any number of messages"
    return (f"simulated, {found.hosts} hosts, NICs of {found.nic_bytes_per_s / 1e9:g} GB/s and {_us(found.nic_latency_s)} us, {most} at once: "
            f"{_us(found.duration_s)} us, {found.duration_s / found.one_host_s:.2f} times one host's {_us(found.one_host_s)}; "
            f"{found.most_outstanding:,} there were")  # fmt: skip


def basis_text(one: MoeLayer) -> str:
    """Why times simulated tile by tile are not those of the table above, in a line of plain text; empty where they are."""
    tiles_s = _core.moe_tiles(**_tiles_of_ranks(one, "tiles"))["duration_s"]
    if _us(tiles_s) == _us(one.duration_s):
        return ""
    return (f"two models: in the table {one.label} takes {_us(one.duration_s)} us, as rows of its kernel's times have it; times below the "
            f"table are of its tiles simulated, {_us(tiles_s)} us on one host with no rank late ({tiles_s / one.duration_s - 1:+.1%})")  # fmt: skip


def _us(value: float) -> str:
    return f"{value * 1e6:,.1f}"


_LATE = {"kernel": "one kernel, late once", "stalled": "and still as long in its middle", "bulk_synchronous": "two exchanges, late at each"}


def late_text(late: LateRank) -> str:
    """In plain text, us."""
    times = {
        "kernel": (late.on_time_s, late.kernel_s),
        "stalled": (late.on_time_s, late.stalled_s),
        "bulk_synchronous": (late.bulk_on_time_s, late.bulk_s),
    }
    rows = [(label, *map(_us, times[name])) for name, label in _LATE.items()]
    return aligned((f"simulated, rank {late.rank} late by {_us(late.delay_s)} us", "on time us", "late"), rows, right=(1, 2))


def stragglers_text(found: dict[str, dict[str, float]], jitter: str) -> str:
    """In plain text, us."""
    rows = [(label, *(_us(found[name][key]) for key in ("on_time_s", "median_s", "p95_s"))) for name, label in _LATE.items()]
    return aligned((f"simulated, jitter of the {jitter}", "on time us", "median", "p95"), rows, right=range(1, 4))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of `orrery moe`."""
    parser.add_argument("model", metavar="MODEL", help="a name that `orrery models` lists, or a path")
    parser.add_argument("--tokens", type=whole_number(1, 10**9), nargs="+", default=[64], metavar="N", help="of all ranks together (64)")
    parser.add_argument("--weights", choices=("bf16", "fp8"), default="bf16", help="and activations (bf16)")
    parser.add_argument("--machine", default="single-h200", help="see `orrery machines` (single-h200)")
    parser.add_argument("--provider", default="orrery", help="see `orrery providers` (orrery)")
    parser.add_argument("--expert-load", default="uniform", metavar="LOAD", help="as model.expert_load of a scenario (uniform)")
    parser.add_argument("--streams", type=whole_number(1, 2), default=1, help="2: the shared expert on a second stream (1)")
    chunks = "parts of a rank's tokens, with dp above 1: one computes while others are on their way (1)"
    parser.add_argument("--chunks", type=whole_number(1, 64), default=1, metavar="K", help=chunks)
    for ways in ("dp", "tp", "ep"):
        parser.add_argument(f"--{ways}", type=whole_number(1, 10**6), default=1, metavar="N")
    parser.add_argument("--expert-comm", metavar="C", help="with dp above 1: eager, copies, graph, dedup, dedup_graph (eager)")
    parser.add_argument("--experts", default="in_order", help="with ep above 1: balanced, balanced_on_nodes, by_links (in_order)")
    parser.add_argument("--redundant", type=whole_number(0, 10**6), default=0, metavar="N", help="copies of experts chosen most (0)")
    parser.add_argument("--straggler-delay", type=seconds, metavar="T", help="one rank late by T, as 50us: what design persistent loses, simulated")
    parser.add_argument("--straggler-rank", type=int, default=0, metavar="N", help="which is late (0)")
    parser.add_argument("--jitter", choices=("supercomputer", "vm"), help="ranks late as published for all-to-alls, simulated likewise")
    parser.add_argument("--hosts", type=whole_number(1, 10**6), metavar="N", help="design persistent, its ranks on N hosts, simulated")
    parser.add_argument("--nic-queue", type=whole_number(0, 10**9), default=0, metavar="N", help="messages of a rank at once (0: any number)")
    parser.add_argument("--ablation", action="store_true", help="design shuffling, and without one thing each")
    parser.add_argument("--launches", action="store_true", help="of each design: launches and time by kernel and stream, share of communication")
    timeline = "write a trace for Perfetto: design shuffling beside design persistent, simulated; prints where SMs' time goes in the latter"
    parser.add_argument("--timeline", type=pathlib.Path, metavar="FILE", help=timeline)
    measured = "with --timeline, and beside them what orrery-gpu moe and moe_trace wrote into DIR"
    parser.add_argument("--measured", type=pathlib.Path, metavar="DIR", help=measured)
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def _write_timeline(pairs: dict[str, tuple[MoeLayer, MoeLayer]], options: argparse.Namespace) -> None:
    """Of layers by name, each as several kernels and as one."""
    from . import files, layer_trace
    from .perfetto import layer as perfetto_layer

    trace = perfetto_layer.beside(pairs, options.measured)
    files.write_text(options.timeline, trace.text())
    splits = {name: layer_trace.splits(perfetto_layer.one_kernel(one))[0] for name, (_, one) in pairs.items()}
    where = sys.stderr if options.json else sys.stdout
    print(f"simulated tile by tile\n{layer_trace.text(splits)}\n{options.timeline}; open it at https://ui.perfetto.dev", file=where)


def _simulated(one: MoeLayer, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """What late ranks and several hosts cost, as asked for: for machines, and in plain text."""
    found: dict[str, Any] = {}
    text = ""
    if options.straggler_delay is not None:
        late = late_rank(one, delay_s=options.straggler_delay, rank=options.straggler_rank)
        found["late_rank"] = late.to_dict()
        text += f"{late_text(late)}\n"
    if options.jitter:
        found["stragglers"] = stragglers(one, jitter=options.jitter)
        text += f"{stragglers_text(found['stragglers'], options.jitter)}\n"
    if options.hosts is not None:
        apart = on_hosts(one, hosts=options.hosts, nic_queue=options.nic_queue)
        found["on_hosts"] = apart.to_dict()
        text += f"{hosts_text(apart)}\n"
    basis = basis_text(one) if text else ""
    return found, text + (f"{basis}\n" if basis else "")


def run(options: argparse.Namespace) -> int:
    """Prints a table for each number of tokens."""
    keys = {name: getattr(options, name) for name in ("weights", "machine", "provider", "expert_load", "dp", "tp", "ep")}
    keys |= {"expert_comm": options.expert_comm, "experts": options.experts, "num_redundant_experts": options.redundant}
    for name, of in (("straggler_rank", "straggler_delay"), ("nic_queue", "hosts")):
        if getattr(options, name) and getattr(options, of) is None:
            raise ValueError(f"--{name} without --{of}, expected both".replace("_", "-"))
    if options.chunks > 1 and options.ablation:
        raise ValueError("--chunks with --ablation, whose layers are not cut; expected one of them")
    if options.measured and not options.timeline:
        raise ValueError("--measured without --timeline, expected both")
    if options.timeline and options.timeline.exists() and not options.force:
        raise FileExistsError(f"'{options.timeline}' exists; expected a new file, or --force to replace it")
    found: list[dict[str, Any]] = []
    pairs: dict[str, tuple[MoeLayer, MoeLayer]] = {}
    for tokens in options.tokens:
        left_out = ""
        if options.ablation:
            layers = ablation(options.model, tokens=tokens, **keys)
        elif options.dp > 1 or options.ep > 1 or options.chunks > 1:  # the other designs hold all experts on each rank
            layers = [layer(options.model, tokens=tokens, streams=options.streams, **keys)]
            if options.chunks > 1:
                label = f"shuffling, {options.chunks} chunks"
                layers.append(layer(options.model, tokens=tokens, streams=options.streams, chunks=options.chunks, label=label, **keys))
            alone, left_out = _persistent(options.model, tokens=tokens, **keys)
            layers += alone
        else:
            layers = [layer(options.model, tokens=tokens, design=design, streams=options.streams, **keys) for design in DESIGNS]
            alone, left_out = _persistent(options.model, tokens=tokens, **keys)
            layers += alone
        if left_out:
            left_out = f"persistent, the layer as one kernel, is left out: {left_out}"
        kernels = [one for one in layers if one.buffers_bytes]
        if (options.straggler_delay is not None or options.jitter or options.hosts is not None) and not kernels:
            raise ValueError(
                "late ranks and several hosts: no design persistent here, expected a model, format and placement that it takes, "
                f"without --ablation{'; ' if left_out else ''}{left_out}"
            )
        if options.timeline:
            if not kernels:
                raise ValueError(f"--timeline: no design persistent here, expected a model, format and placement that it takes, without --ablation{'; ' if left_out else ''}{left_out}")  # fmt: skip
            shuffling = next(one for one in layers if one.design == "shuffling")
            pairs[f"{tokens:,} tokens"] = (shuffling, kernels[0])
        more = {one.label: _simulated(one, options) for one in kernels}
        listings = [launches.listing(one.timeline, one.plan_text) for one in layers] if options.launches else []
        found += [one.to_dict() | more.get(one.label, ({}, ""))[0] for one in layers]
        for entry, listing in zip(found[-len(layers) :], listings):
            entry["listing"] = listing.to_dict()
        if not options.json:
            below = "".join(f"{memory(one)}\n{more[one.label][1]}" for one in kernels) + (f"{left_out}\n" if left_out else "")
            print(f"{layers[0].model}, {tokens} tokens, {options.weights}, {options.machine}\n{table(layers)}\n{below}")
            for one, listing in zip(layers, listings):
                print(f"{one.label}, {one.mode}\n{launches.table(listing)}\n")
        elif left_out:
            print(left_out, file=sys.stderr)
    if pairs:
        _write_timeline(pairs, options)
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


__all__ = [
    "DESIGNS", "LateRank", "MoeLayer", "OnHosts", "ablation", "basis_text", "designs", "hosts_text", "late_rank", "late_text", "layer", "memory",
    "of_scenario", "on_hosts", "persistent", "stragglers", "stragglers_text", "table",
]  # fmt: skip
