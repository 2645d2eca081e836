"""`orrery scaling`: how attention grows with the context and FFNs or experts with the tokens, as a step of a scenario has them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _core, explain
from .arguments import scenario_file, whole_number
from .simulation import load
from .text_table import aligned

_MOST = 1 << 24
# Ops of a layer from which on it is the FFN's, dense or routed.
_BEGIN_OF_FFN = ("ffn_norm", "router", "gate_up", "up_proj", "experts")


@dataclasses.dataclass(frozen=True)
class Part:
    """Ops of a step added up, seconds. Of those whose very calls have rows in the tables `measured_s` is what these say, without
    the engine's corrections, and `on_rows_s` what they are priced at."""

    time_s: float = 0.0
    measured_s: float = 0.0
    on_rows_s: float = 0.0

    def __add__(self, other: Part) -> Part:
        return Part(self.time_s + other.time_s, self.measured_s + other.measured_s, self.on_rows_s + other.on_rows_s)


@dataclasses.dataclass(frozen=True)
class Point:
    """One step. `attention` are the kernels that read the context, `ffn` the ops of dense FFNs or of routing, experts and their
    exchange, `other` the rest: norms, projections of attention, LM head."""

    batch: _core.Batch
    attention: Part
    ffn: Part
    other: Part

    @property
    def share_of_attention(self) -> float:
        """Of the time of all ops."""
        return self.attention.time_s / (self.attention.time_s + self.ffn.time_s + self.other.time_s)


def point(scenario: _core.Scenario, batch: _core.Batch) -> Point:
    """Prices one step. Ops on streams beside each other are added up like others. Raises ScenarioError as `explain.step`."""
    ops = explain.step(scenario, batch)["ops"]
    parts = {"attention": Part(), "ffn": Part(), "other": Part()}
    for op, kind in zip(ops, kinds(ops)):
        time, row = op["copies"] * op["time_s"], op["copies"] * op["row_s"]
        parts[kind] += Part(time, row, time) if op["rows"] == "the row of the call" else Part(time)
    return Point(batch, **parts)


def kinds(ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which part of a Point each op of a step is of. Names are "layers.4.o_proj", behind those of stages and micro-batches, which
    are each by themselves. An op that comes again, where layers that take turns begin in their midst, is what it was."""
    reads_context = {spec["name"] for spec in _core.kernel_specs() if "context" in spec["dims"]}
    with_ffn: set[str] = set()  # layers whose FFN has begun
    found: dict[str, str] = {}
    for op in ops:
        before, in_layer, behind = op["name"].rpartition("layers.")
        number, _, name = behind.partition(".")
        layer = f"{before}{number}"
        if in_layer and name.startswith(_BEGIN_OF_FFN):
            with_ffn.add(layer)
        kind = "attention" if op["kernel"] in reads_context else "ffn" if in_layer and layer in with_ffn else "other"
        found.setdefault(op["name"], kind)
    return [found[op["name"]] for op in ops]


def decodes(sequences: int, context: int) -> _core.Batch:
    """Decodes of as many tokens each, the new one included."""
    return _core.Batch(num_decodes=sequences, decode_context=sequences * context)


def prompt(tokens: int) -> _core.Batch:
    """One prompt in one step."""
    return _core.Batch(prefill=[_core.PrefillChunk(query=tokens)])


def growth(points: list[Point], sizes: list[int], part: str) -> list[float]:
    """By how many times a part grows where the size doubles, from the point before, as an exponent: 1 is in proportion, 2 by the
    square, 0 not at all. NaN at the first, and where there is nothing."""
    times = [getattr(each, part).time_s for each in points]
    pairs = zip(zip(times, sizes), zip(times[1:], sizes[1:]))
    return [math.nan] + [math.log(b / a) / math.log(y / x) if a > 0 and b > 0 else math.nan for (a, x), (b, y) in pairs]


def powers_of_two(first: int, last: int) -> list[int]:
    """Those from `first` to `last`, and `last`."""
    return sorted({1 << i for i in range(last.bit_length()) if first <= 1 << i} | {last})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=scenario_file, metavar="FILE", help="scenario, or the name of one in scenarios/")
    for name, default, text in (("--sequences", 64, "decodes of the first table, and most of the second (64)"),
                                ("--context", 2048, "tokens of each decode of the second table (2,048)"),
                                ("--most", 131072, "longest context of the first table (131,072)"),
                                ("--prompt", 32768, "longest prompt of the third table (32,768)")):  # fmt: skip
        parser.add_argument(name, type=whole_number(1, _MOST), default=default, metavar="N", help=text)
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides",
                        help="replace one value of the scenario; may be given several times")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    scenario = load(options.file, overrides=options.overrides)
    sweeps = [
        (f"{options.sequences} decodes", "context", powers_of_two(min(512, options.most), options.most),
         lambda size: decodes(options.sequences, size)),
        (f"decodes of {options.context:,} tokens", "sequences", powers_of_two(1, options.sequences),
         lambda size: decodes(size, options.context)),
        ("one prompt", "tokens", powers_of_two(min(512, options.prompt), options.prompt), prompt),
    ]  # fmt: skip
    found = [(title, axis, sizes, [point(scenario, batch(size)) for size in sizes]) for title, axis, sizes, batch in sweeps]
    if options.json:
        print(json.dumps([_plain(*sweep) for sweep in found], indent=2))
    else:
        print("\n\n".join(table(*sweep) for sweep in found))
    return 0


def table(title: str, axis: str, sizes: list[int], points: list[Point]) -> str:
    """A line for each size: both parts, what the tables have measured of them and of how much of their time, how they grow."""
    header = (axis, "attention us", "measured", "grows", "FFN us", "measured", "grows", "other us", "attention's share")
    grows = [growth(points, sizes, part) for part in ("attention", "ffn")]
    rows = [
        (f"{size:,}", *_cells(each.attention, grows[0][i]), *_cells(each.ffn, grows[1][i]), _us(each.other.time_s),
         f"{100 * each.share_of_attention:.0f} %")
        for i, (size, each) in enumerate(zip(sizes, points))
    ]  # fmt: skip
    return f"{title}: one step of a replica, each op as one GPU has it\n" + aligned(header, rows, right=range(len(header)))


def _cells(part: Part, grows: float) -> Iterable[str]:
    measured = f"{_us(part.measured_s)} ({100 * part.on_rows_s / part.time_s:.0f} %)" if part.on_rows_s > 0 else ""
    return _us(part.time_s), measured, "" if math.isnan(grows) else f"^{grows:.2f}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def _plain(title: str, axis: str, sizes: list[int], points: list[Point]) -> dict[str, object]:
    parts = ("attention", "ffn", "other")
    return {
        "sweep": title,
        "points": [{axis: size} | {part: dataclasses.asdict(getattr(each, part)) for part in parts} for size, each in zip(sizes, points)],
    }
