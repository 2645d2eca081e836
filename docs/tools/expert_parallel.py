"""Expert parallelism of design shuffling on one layer: when which collectives are faster, what padding, a skewed load
and slow links cost, and what placing experts, copies and dedup win back.

    import expert_parallel as ep

    rows = ep.flows("llama-4-maverick-17b-128e", tokens=[64, 1024, 16384], ep=8)
    ep.crossover(rows)                 # tokens of all ranks from which on the eager collectives are faster

`python docs/tools/expert_parallel.py` prints the tables of docs/moe.md, with `--page FILE` it puts them into the page, with
`--figure FILE` it draws the timelines.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from orrery import _core, files, load, moe, project_root, simulate
from orrery.text_table import aligned

EXPERT_KERNELS = ("combine_shuffling", "grouped_gemm", "silu_mul", "split_shuffling")
NODE = "hgx-h200"
CLUSTER = "h200-cluster"


def _placement(**keys: object) -> str:
    return "placement={" + ", ".join(f"{key}: {str(value).lower()}" for key, value in keys.items()) + "}"


def _layer(model: str, tokens: int, placement: str, *, overrides: Sequence[str] = (), **keys: Any) -> moe.MoeLayer:
    keys.setdefault("machine", NODE)
    keys.setdefault("streams", 2)  # no shared expert: nothing is on the second
    return moe.layer(model, tokens=tokens, overrides=[placement, *overrides], **keys)


def _ops(plan_text: str, kernel: str) -> list[dict[str, Any]]:
    return [op for op in _core.plan_ops(plan_text) if op["body"]["name"] == kernel]


def _rows_by_rank(plan_text: str) -> dict[int, int]:
    """Rows of the first grouped gemm that each rank runs."""
    rows: dict[int, int] = {}
    for op in _ops(plan_text, "grouped_gemm"):
        for rank in op["ranks"]:
            rows.setdefault(rank, op["body"]["dims"]["rows"])
    return rows


def computing_padding(plan_text: str) -> str:
    """The plan as it would be without counts on the device: experts' kernels work on all rows that there is room for,
    and every expert's weights are read."""
    tensors = {found[1]: found[2] for found in re.finditer(r"^tensor (t\d+) .*?\[(.*?)\]", plan_text, re.MULTILINE)}
    lines = []
    for line in plan_text.splitlines():
        if line.startswith("op ") and any(f" kernel {kernel} " in line for kernel in EXPERT_KERNELS):
            read = re.search(r" \w+=(t\d+)", line)  # its first operand
            axes = dict(axis.split("=") for axis in tensors[read[1]].split(",")) if read else {}
            if room := axes.get("routed_rows"):
                bound = int(room) * int(axes.get("peers", 1))
                line = re.sub(r"=\d+:routed_rows", f"={bound}:routed_rows", line)
                if groups := re.search(r" groups=(\d+)", line):
                    line = re.sub(r" active=\d+", f" active={groups[1]}", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class FlowTimes:
    """One layer with eager collectives and with those of a graph; `padded` is the graph computing its padding too."""

    tokens: int  # of all ranks
    rows: int  # computed on the busiest rank
    room: int  # rows that its buffers hold
    active: int  # experts chosen on it
    experts: int  # that it holds
    eager_s: float
    graph_s: float
    padded_s: float


def flows(model: str, *, tokens: Sequence[int], ep: int = 8, **keys: Any) -> list[FlowTimes]:
    """The layer on `ep` data-parallel ranks for each number of tokens of all ranks together.

    `keys` are those of `moe.layer` (machine: hgx-h200, streams: 2). Raises ScenarioError.
    """
    result = []
    for total in tokens:
        eager = _layer(model, total, _placement(dp=ep, ep=ep, expert_comm="eager"), mode="eager", **keys)
        graph = _layer(model, total, _placement(dp=ep, ep=ep, expert_comm="graph"), mode="graph", **keys)
        padded_text = computing_padding(graph.plan_text)
        scenario = load(
            project_root() / "scenarios" / "moe_scout_designs.yaml",
            overrides=[f"model.config={model}", f"machine={keys.get('machine', NODE)}"],
        )
        padded = _core.predict_plan(scenario, padded_text, graph=True)
        busiest = max(_ops(graph.plan_text, "grouped_gemm"), key=lambda op: op["body"]["dims"]["rows"])["body"]["dims"]
        result.append(
            FlowTimes(
                tokens=total,
                rows=busiest["rows"],
                room=_ops(padded_text, "grouped_gemm")[0]["body"]["dims"]["rows"],
                active=busiest["active"],
                experts=busiest["groups"],
                eager_s=eager.duration_s,
                graph_s=graph.duration_s,
                padded_s=padded["duration_s"],
            )
        )
    return result


def crossover(times: Sequence[FlowTimes]) -> int | None:
    """The fewest tokens from which on the eager collectives are the faster ones; None: not even at the most tokens."""
    found = None
    for row in sorted(times, key=lambda row: row.tokens, reverse=True):
        if row.eager_s >= row.graph_s:
            break
        found = row.tokens
    return found


@dataclasses.dataclass(frozen=True)
class PlacementTimes:
    """One layer with experts placed in one way."""

    order: str  # even (routing), in_order, balanced or balanced_on_nodes
    redundant: int
    imbalance: float  # rows of the busiest rank against the mean
    duration_s: float


def placements(
    model: str,
    *,
    tokens: int,
    ep: int = 8,
    expert_load: str = "{zipf: 1.0}",
    redundant: Sequence[int] = (0,),
    orders: Sequence[str] = ("in_order", "balanced"),
    **keys: Any,
) -> list[PlacementTimes]:
    """The layer with even routing (order "even"), then with `expert_load` for each number of redundant experts in each
    order. `keys` are those of `moe.layer`. Raises ScenarioError."""

    def one(order: str, copies: int, choices: str) -> PlacementTimes:
        name = "in_order" if order == "even" else order
        placement = _placement(dp=ep, ep=ep, expert_comm="eager", num_redundant_experts=copies)
        found = _layer(model, tokens, placement, expert_load=choices, overrides=[f"moe.experts={name}"], **keys)
        rows = _rows_by_rank(found.plan_text).values()
        return PlacementTimes(order, copies, max(rows) * len(rows) / sum(rows), found.duration_s)

    result = [one("even", 0, "uniform")]
    for copies in redundant:
        # Copies of the first experts help nobody: in order is where a deployment starts, without copies.
        result += [one(order, copies, expert_load) for order in orders if copies == 0 or order != "in_order"]
    return result


@dataclasses.dataclass(frozen=True)
class DedupTimes:
    """One layer across nodes, with whole rows or slices of them on the links between nodes."""

    comm: str
    tokens: int
    between_nodes_bytes: float  # of the dispatch and combine of rows, over all NICs
    duration_s: float


def dedup(
    model: str, *, tokens: Sequence[int], dp: int = 2, tp: int = 8, machine: str = CLUSTER, **keys: Any
) -> list[DedupTimes]:
    """The layer on `dp` nodes of `tp` GPUs, experts over nodes, with each of the four `expert_comm`. Raises ScenarioError."""
    result = []
    for total in tokens:
        for comm in ("eager", "dedup", "graph", "dedup_graph"):
            found = _layer(
                model, total, _placement(dp=dp, tp=tp, ep=dp, expert_comm=comm), machine=machine, level="heap", **keys
            )
            links = found.timeline.links_to_pandas()
            rows = links["op"].str.contains(r"(?:dispatch|return)\.", regex=True)
            sent = links[links["link"].str.contains("nic.up", regex=False) & rows]
            result.append(DedupTimes(comm, total, float(sent["bytes"].sum()), found.duration_s))
    return result


@dataclasses.dataclass(frozen=True)
class SplitTimes:
    """One layer, eager, with the shared expert in two parts or whole; kernels side by side share the GPU."""

    tokens: int
    whole: moe.MoeLayer
    split: moe.MoeLayer


def shared_split(model: str, *, tokens: Sequence[int], ep: int = 4, **keys: Any) -> list[SplitTimes]:
    """The layer at level representative for each number of tokens of all ranks. Raises ScenarioError."""

    def one(total: int, splits: bool) -> moe.MoeLayer:
        placement = _placement(dp=ep, ep=ep, expert_comm="eager", split_shared_expert=splits)
        return _layer(model, total, placement, level="representative", **keys)

    return [SplitTimes(total, one(total, False), one(total, True)) for total in tokens]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def flows_table(times: Sequence[FlowTimes]) -> str:
    header = ("tokens", "rows", "room", "active", "experts", "eager us", "graph us", "computing padding us")
    rows = [
        (
            str(r.tokens),
            str(r.rows),
            str(r.room),
            str(r.active),
            str(r.experts),
            *map(_us, (r.eager_s, r.graph_s, r.padded_s)),
        )
        for r in times
    ]
    return aligned(header, rows, right=range(len(header)))


def placements_table(times: Sequence[PlacementTimes]) -> str:
    header = ("placement", "redundant", "busiest / mean", "us", "against even")
    rows = [
        (
            r.order,
            str(r.redundant),
            f"{r.imbalance:.2f}",
            _us(r.duration_s),
            f"{r.duration_s / times[0].duration_s:.2f}",
        )
        for r in times
    ]
    return aligned(header, rows, right=range(1, len(header)))


def dedup_table(times: Sequence[DedupTimes]) -> str:
    header = ("tokens", "expert_comm", "MB between nodes", "us")
    rows = [(str(r.tokens), r.comm, f"{r.between_nodes_bytes / 1e6:.1f}", _us(r.duration_s)) for r in times]
    return aligned(header, rows, right=(0, 2, 3))


def split_table(times: Sequence[SplitTimes]) -> str:
    header = ("tokens", "whole us", "split us", "exposed, whole us", "exposed, split us")
    rows = [
        (
            str(r.tokens),
            _us(r.whole.duration_s),
            _us(r.split.duration_s),
            _us(r.whole.timeline.exposed_communication_s()),
            _us(r.split.timeline.exposed_communication_s()),
        )
        for r in times
    ]
    return aligned(header, rows, right=range(len(header)))


def draw_split(times: SplitTimes, file: pathlib.Path) -> None:
    """The two timelines of the first rank as bars, one row for each stream and the host."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orrery", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(9, 4.2), layout="constrained")
    colours = {"kernel": "#4c72b0", "comm": "#c44e52", "host": "#8c8c8c"}
    for place, (title, layer) in zip(axes, (("whole", times.whole), ("split", times.split)), strict=True):
        spans = layer.timeline.to_pandas()
        for span in spans[spans["rank"] == 0].itertuples():
            lane = 3 if span.kind == "host" else span.stream
            start, length = span.start_s * 1e6, (span.end_s - span.start_s) * 1e6
            colour = "#dd8452" if "shared" in span.op else colours[span.kind]
            place.barh(lane, length, left=start, color=colour, edgecolor="white", linewidth=0.5)
            if length > 0.04 * layer.duration_s * 1e6:
                place.text(start + length / 2, lane, span.op, ha="center", va="center", fontsize=6, color="white")
        place.set_yticks(range(4), ["routed", "shared", "dispatch and combine", "host"])
        place.invert_yaxis()
        place.set_title(f"shared expert {title}: {layer.duration_s * 1e6:.1f} us", loc="left")
    axes[-1].set_xlabel("us")
    with files.replacing(file) as drawing:
        figure.savefig(drawing, format=file.suffix[1:], metadata={"Date": None})
    pyplot.close(figure)


def serving_table() -> str:
    """What placement does to the service of scenarios/qwen3_30b_expert_parallel.yaml."""
    without_copies = "placement.num_redundant_experts=0"
    changes: dict[str, list[str]] = {
        "even": ["model.expert_load=uniform", without_copies, "moe.experts=in_order"],
        "in_order": [without_copies, "moe.experts=in_order"],
        "balanced": [without_copies],
        "balanced, 8 copies": [],
    }
    rows = []
    for label, overrides in changes.items():
        scenario = load(project_root() / "scenarios" / "qwen3_30b_expert_parallel.yaml", overrides=overrides)
        summary = simulate(scenario).summary
        times = (f"{summary[key]['mean'] * 1e3:.1f}" for key in ("ttft_s", "tpot_s"))
        rows.append((label, *times, f"{summary['output_tokens_per_s']:.0f}"))
    return aligned(("experts", "mean TTFT ms", "mean TPOT ms", "output tokens/s"), rows, right=(1, 2, 3))


def tables() -> dict[str, str]:
    """The tables of docs/moe.md by the name under which they stand there."""
    scout, maverick, deepseek = ("llama-4-scout-17b-16e", "llama-4-maverick-17b-128e", "deepseek-v3")
    found = {"split": split_table(shared_split(scout, tokens=[64, 512, 2048, 16384]))}
    for name, model in (("flows-qwen", "qwen3-30b-a3b"), ("flows-deepseek", deepseek)):
        times = flows(model, tokens=[8, 16, 32, 64, 128, 512, 2048, 8192, 32768])
        first = crossover(times)
        where = "never" if first is None else f"from {first} tokens on"
        found[name] = f"{model}: the eager collectives are the faster ones {where}\n\n{flows_table(times)}"
    for total in (256, 16384):
        rows = placements(deepseek, tokens=total, redundant=[0, 8, 32])
        found[f"placements-{total}"] = f"{deepseek}, {total} tokens of all ranks\n\n{placements_table(rows)}"
    found["serving"] = serving_table()
    found["dedup"] = dedup_table(dedup(maverick, tokens=[64, 1024, 16384]))
    return found


def renewed(page: str, found: dict[str, str]) -> str:
    """The page with each table behind a line "<!-- name -->" put anew. Raises ValueError for a table that has no place
    there."""
    for name, text in found.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n)(?:```\n.*?```\n)?", re.DOTALL)
        page, count = place.subn(lambda match, text=text: f"{match[1]}```\n{text}\n```\n", page)
        if count != 1:
            raise ValueError(f"found {count} places for the table '{name}', expected one line <!-- {name} -->")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of docs/moe.md.")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="put the tables of this page anew")
    parser.add_argument("--figure", type=pathlib.Path, metavar="FILE", help="draw the split shared expert as SVG")
    options = parser.parse_args()
    if options.figure is not None:
        draw_split(shared_split("llama-4-scout-17b-16e", tokens=[2048])[0], options.figure)
    if options.page is not None:
        files.write_text(options.page, renewed(options.page.read_text(encoding="utf-8"), tables()))
    elif options.figure is None:
        print("\n\n".join(f"{name}\n{text}" for name, text in tables().items()))


if __name__ == "__main__":
    main()
