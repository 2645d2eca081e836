"""80 % intervals around simulated metrics, from how far published measurements lay from simulated ones.

The logarithm of published over simulated, divided by sqrt(1 + (f x s)^2 + ...) with the shares s of time on rooflines, on
borrowed rows and between rows and the number s of settings that are inferred, has a 10 % and a 90 % quantile for each metric, engine and kind
of load; rows carried to another architecture have quantiles of their own. They are those of groups that the fitted numbers
never saw (calibration.py, `python -m orrery.scorecard.fit`) and stand in data/serving/intervals.csv, with what they were
validated for: outside of it an interval is withheld, and the reason said.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

from ..simulation import project_root

ANY = "any"
NEAR, CARRIED = "near", "carried"  # tables of the device or its architecture; of another architecture
COLUMNS = ("metric", "tables", "engine", "load", "cells", "values", "log_low", "log_high", "most_roofline", "most_nodes",
           "roofline_factor", "borrowed_factor", "interpolated_factor", "inferred_factor")  # fmt: skip
# Where rows are carried, metrics of a kind together, since few were published on such GPUs.
CARRIED_AS = {"TTFT": "first token", "prefill time": "first token", "TPOT": "per token", "decode time": "per token", "ITL": "per token",
              "output throughput": "throughput", "total throughput": "throughput", "request throughput": "throughput"}  # fmt: skip
INVERSE = {"rate of a user": "TPOT", "rate of a user p50": "TPOT p50"}
# Ops of a step (the end of their names) -> what no published case has that is compared.
UNLIKE_OPS = {"delta_prefill": "linear attention", "delta_decode": "linear attention", "ssm_prefill": "state space layers",
              "ssm_decode": "state space layers", "sparse_index": "sparse attention"}  # fmt: skip
Key = tuple[str, str, str, str]  # metric, tables, engine, load; ANY in the parents
Bounds = tuple[float, float]  # low, high
BEYOND = 0.05  # by so much the share on rooflines may exceed what was validated


@dataclasses.dataclass(frozen=True)
class Standing:
    """What a simulated metric stands on."""

    roofline: float = 0.0  # shares of simulated time
    borrowed: float = 0.0
    interpolated: float = 0.0
    tables: str = NEAR
    nodes: int = 1  # of a replica
    inferred: int = 0  # settings that nobody stated
    engine: str = ANY
    load: str = ANY
    unlike: str = ""  # what runs that no published case has: "linear attention", "speculative decoding"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table."""

    bounds: Bounds  # logarithms
    most_roofline: float
    most_nodes: int
    cells: int = 0  # groups of the published values that were compared
    values: int = 0


@dataclasses.dataclass(frozen=True)
class Factors:
    """How much wider each of these makes an interval."""

    roofline: float
    borrowed: float
    interpolated: float
    inferred: float

    def width(self, standing: Any) -> Any:
        """Against an interval of none of them; `standing` has each as a number, or as an array of them."""
        squares = ((getattr(self, name) * getattr(standing, name)) ** 2 for name in FACTORS)
        return (1 + sum(squares)) ** 0.5


FACTORS = tuple(field.name for field in dataclasses.fields(Factors))


@dataclasses.dataclass(frozen=True)
class Table:
    """Of data/serving/intervals.csv."""

    factors: Factors
    rows: Mapping[Key, Row]

    def key(self, metric: str, standing: Standing) -> Key | None:
        """Of the metric, engine and load, or of the nearest parent that there is."""
        if standing.tables == CARRIED:
            keys = [(CARRIED_AS.get(metric, metric), CARRIED, ANY, ANY)]
        else:
            loads = ((standing.engine, standing.load), (standing.engine, ANY), (ANY, ANY))
            keys = [(metric, standing.tables, engine, load) for engine, load in loads]
        return next((key for key in keys if key in self.rows), None)

    def row(self, metric: str, standing: Standing) -> Row | None:
        """The row of `key`."""
        key = self.key(metric, standing)
        return None if key is None else self.rows[key]


def interval(simulated: float, metric: str, standing: Standing, table: Table | None = None) -> Bounds | None:
    """(low, high) around a simulated value, in its unit; None where `withheld` says why."""
    table = table or shipped()
    if metric in INVERSE:  # tokens a second of a user: the inverse of the time of one
        bounds = interval(1 / simulated, INVERSE[metric], standing, table)
        return bounds and (1 / bounds[1], 1 / bounds[0])
    row = table.row(metric, standing)
    if row is None or withheld(metric, standing, table):
        return None
    width = table.factors.width(standing)
    low, high = (math.exp(bound * width) for bound in row.bounds)
    return simulated * low, simulated * high


def withheld(metric: str, standing: Standing, table: Table | None = None) -> str:
    """Why there is no interval; nothing where there is one."""
    metric = INVERSE.get(metric, metric)
    row = (table or shipped()).row(metric, standing)
    if standing.unlike:
        return f"no published run with {standing.unlike} was compared"
    if row is None:
        rows = "carried to another architecture" if standing.tables == CARRIED else "of the device's architecture"
        return f"no published {metric} was compared with tables {rows}"
    if standing.nodes > row.most_nodes:
        nodes = f"over {row.most_nodes} nodes" if row.most_nodes > 1 else "within one node"
        return f"a replica takes {standing.nodes} nodes, and published values were compared {nodes} alone"
    if standing.roofline > row.most_roofline + BEYOND:
        return (f"{100 * standing.roofline:.0f} % of the time stands on rooflines, and published values were compared "
                f"up to {100 * row.most_roofline:.0f} %")  # fmt: skip
    return ""


def read(lines: Any) -> Table:
    """Of the file's lines. Throws ValueError for one without the columns or with a cell that is no number."""
    rows = list(csv.DictReader(lines))
    if not rows or set(rows[0]) != set(COLUMNS):
        raise ValueError(f"intervals.csv: found columns {', '.join(rows[0]) if rows else 'none'}, expected {', '.join(COLUMNS)}")
    factors = Factors(*(float(rows[0][f"{name}_factor"]) for name in FACTORS))
    return Table(factors, {
        (r["metric"], r["tables"], r["engine"], r["load"]):
        Row((float(r["log_low"]), float(r["log_high"])), float(r["most_roofline"]), int(r["most_nodes"]), int(r["cells"]), int(r["values"]))
        for r in rows
    })  # fmt: skip


@functools.cache
def shipped() -> Table:
    """The table of data/serving/intervals.csv."""
    with (project_root() / "data" / "serving" / "intervals.csv").open(encoding="utf-8", newline="") as file:
        return read(file)


# Latencies and rates of summary.json and the metrics that they are compared as.
_LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("end to end", "e2e_s"))
_QUANTILES = (("", "mean"), (" p50", "p50"), (" p99", "p99"))
_RATES = (("output throughput", "output_tokens_per_s"), ("request throughput", "requests_per_s"))
_SIBLINGS = ("sibling", "other provider on sibling")
_OTHER_ARCHITECTURE = ("other architecture", "other provider and architecture")
_OWN_KERNELS = ("orrery", "none")
VALIDATED_ON = "h200-sxm"  # docs/validation: every plan that was executed


def standing_of(summary: Mapping[str, Any]) -> Standing:
    """Of a run's summary; one of an older version says less of its tables."""
    basis = summary["basis"]
    is_carried = bool(devices_of(summary, _OTHER_ARCHITECTURE))
    provider = summary["provenance"].get("provider") if isinstance(summary.get("provenance"), Mapping) else None
    return Standing(
        roofline=basis["roofline"], borrowed=basis.get("borrowed", 0.0), interpolated=basis.get("interpolated", 0.0),
        tables=CARRIED if is_carried else NEAR,
        nodes=summary.get("nodes_per_replica", 1), engine=str(provider or "none").partition("-")[0], unlike=_unlike(summary),
    )  # fmt: skip


def _unlike(summary: Mapping[str, Any]) -> str:
    """What the run has that no published case has, by its ops; one of an older version may not list them."""
    ops = summary.get("step_breakdown")
    names = [str(op.get("op", "")).rpartition(".")[2] for op in ops if isinstance(op, Mapping)] if isinstance(ops, list) else []
    kinds = dict.fromkeys(UNLIKE_OPS[name] for name in names if name in UNLIKE_OPS)
    return " and ".join([*kinds, *(["speculative decoding"] if "speculative" in summary else [])])


def devices_of(summary: Mapping[str, Any], origins: Collection[str]) -> list[str]:
    """Devices whose tables answered from such an origin, in the order in which they were asked."""
    tables = summary.get("tables")
    found = [table for table in tables if isinstance(table, Mapping)] if isinstance(tables, list) else []
    return list(dict.fromkeys(str(table.get("device")) for table in found if table.get("origin") in origins))


def basis_words(summary: Mapping[str, Any]) -> dict[str, str]:
    """What each share of the basis is called: "borrowed from h200-sxm", "roofline, carried from h200-sxm"."""
    borrowed, carried = (", ".join(devices_of(summary, origins)) for origins in (_SIBLINGS, _OTHER_ARCHITECTURE))
    return {
        "measured": "measured", "interpolated": "interpolated",
        "borrowed": f"borrowed from {borrowed}" if borrowed else "borrowed",
        "roofline": f"roofline, carried from {carried}" if carried else "roofline",
    }  # fmt: skip


def of_run(summary: Mapping[str, Any]) -> dict[str, Any]:
    """By "ttft_s.mean" and the like: {"low", "high", "basis"} of the 80 % interval, or {"withheld": why there is none}.

    Means, medians and 99th percentiles of the latencies, and the rates; in the summary's units. `basis` says of what
    published values the interval was made.
    """
    standing = standing_of(summary)
    values = {f"{key}.{name}": (label + suffix, summary[key][name]) for label, key in _LATENCIES for suffix, name in _QUANTILES}
    values |= {key: (label, summary[key]) for label, key in _RATES}
    return {key: _entry(metric, value, standing, summary) for key, (metric, value) in values.items() if value}


def _entry(metric: str, value: float, standing: Standing, summary: Mapping[str, Any]) -> dict[str, Any]:
    reason = ""
    if standing.engine in _OWN_KERNELS:
        reason = _of_own(standing.engine, str(summary.get("device", "")))
    elif "disaggregation" in summary:
        reason = _of_replicas()
    reason = reason or withheld(metric, standing)
    bounds = None if reason else interval(value, metric, standing)
    if bounds is None:
        return {"withheld": reason}
    return {"low": bounds[0], "high": bounds[1], "basis": _basis(metric, standing)}


def _of_own(engine: str, device: str) -> str:
    """Of our own kernels, and of the work model alone, where these were compared."""
    if engine != "orrery":
        return "published runs are of engines with kernel tables, and this one stands on the work model alone"
    where = VALIDATED_ON if device in ("", VALIDATED_ON) else f"{VALIDATED_ON} alone, and this run is on {device}"
    return f"published runs are of other engines' kernels; docs/validation compares our own, on {where}"


def _of_replicas() -> str:
    """Of prefill and decode apart, as far as the KV transfers that were compared say it."""
    row = shipped().rows.get(("KV transfer time", NEAR, ANY, ANY))
    if row is None:
        return "no published service of prefill and decode replicas was compared"
    groups = "one source" if row.cells == 1 else f"{row.cells:,} groups"
    return f"of services with prefill and decode replicas {row.values:,} published runs of {groups} were compared, too few for an interval"


def _basis(metric: str, standing: Standing) -> str:
    """What was compared: "347 published TPOT in 19 groups, of engine vllm"."""
    table = shipped()
    key = table.key(metric, standing)
    assert key is not None  # or there would be no interval
    of, tables, engine, load = key
    row = table.rows[key]
    where = "carried from another architecture" if tables == CARRIED else "of any engine" if engine == ANY else f"of engine {engine}"
    under = "" if load == ANY else f", {load.replace('_', ' ')}"
    return f"{row.values:,} published {of} in {row.cells:,} group{'' if row.cells == 1 else 's'}, {where}{under}"
