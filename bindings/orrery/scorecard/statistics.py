"""Errors by group, and how well parallelisms are ranked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas

from . import lengths, rules
from .cases import Case
from .intervals import CARRIED, NEAR, Standing
from .outcomes import Outcome

NOISE = 0.02  # repeated runs of one configuration differ by so much (data/serving/SOURCES.md)
Pair = tuple[float, float]  # published, simulated
LOADS = ("concurrency", "concurrency per GPU")  # of which one is equal where parallelisms are ranked
MEASURES = ("TPOT", "output throughput per GPU")  # by which they are


def table(outcomes: Sequence[Outcome]) -> pandas.DataFrame:
    """One row per compared metric, with the columns to group by; `error` is simulated / published - 1."""
    rows = [
        {
            "case_id": outcome.case.case_id,
            **groups(outcome.case),
            "engine": " ".join(filter(None, (outcome.case.fields["engine"], outcome.case.fields["engine_version"]))),
            "parallelism": parallelism(outcome),
            "phase": outcome.case.fields["phase"],
            "quality": outcome.case.fields["quality"],
            "load": outcome.case.fields["load_kind"],
            "contradiction": outcome.case.contradiction,
            "metric": comparison.metric,
            "unit": comparison.unit,
            "published": comparison.published,
            "simulated": comparison.simulated,
            "error": comparison.error,
            "roofline": outcome.basis["roofline"],
            "borrowed": outcome.basis.get("borrowed", 0.0),
            "interpolated": outcome.basis.get("interpolated", 0.0),
            "is_carried": outcome.is_carried,
            "nodes": outcome.nodes,
            "unlike": outcome.unlike,
            "inferred": inferred,
        }
        for outcome in outcomes
        for inferred in [rules.num_inferred(outcome.case.fields) if outcome.comparisons else 0]
        for comparison in outcome.comparisons
    ]
    return pandas.DataFrame(rows)


def groups(case: Case) -> dict[str, str]:
    """The family, version (of the row or of the image that its launch script named), model and GPU of a case."""
    fields = case.fields
    found = None if case.problem else rules.choices(fields).get("engine_version")
    is_known = found is not None and found.basis in (rules.STATED, rules.SCRIPT)
    return {
        "family": case.family,
        "version": f"{fields['engine']} {found.value if is_known else 'of no known version'}",
        "model": fields["model_file"].rpartition("--")[2] or fields["model"],
        "gpu": fields["gpu_key"],
    }


def standing(row: Mapping[str, Any]) -> Standing:
    """What a row of `table` stands on."""
    return Standing(
        roofline=row["roofline"], borrowed=row["borrowed"], interpolated=row.get("interpolated", 0.0),
        tables=CARRIED if row["is_carried"] else NEAR, nodes=row["nodes"],
        inferred=row["inferred"], engine=row["engine"].partition(" ")[0], load=row["load"], unlike=row.get("unlike", ""),
    )  # fmt: skip


def parallelism(outcome: Outcome) -> str:
    """Such as "TP4 EP4" or "TP8"; one GPU is "TP1"."""
    case = outcome.case
    if case.fields["layout"] == "pd":
        return case.fields["parallelism"]
    ways = (
        ("TP", case.whole("tp", 1)),
        ("PP", case.whole("pp", 1)),
        ("DP", case.whole("attention_dp", 1)),
        ("EP", case.whole("moe_ep", 1)),
        ("x", case.whole("replicas", 1)),
    )
    return " ".join(f"{name}{count}" for name, count in ways if count > 1) or "TP1"


def errors_by(errors: pandas.DataFrame, *columns: str) -> pandas.DataFrame:
    """Number of cases, mean (MAPE), median and 90th percentile of the absolute error, and mean signed error."""
    magnitude = errors.assign(magnitude=errors["error"].abs())
    groups = magnitude.groupby(list(columns), sort=True)
    return pandas.DataFrame(
        {
            "cases": groups.size(),
            "mape": groups["magnitude"].mean(),
            "median": groups["magnitude"].median(),
            "p90": groups["magnitude"].quantile(0.9),
            "bias": groups["error"].mean(),
        }
    ).reset_index()


def from_evidence(errors: pandas.DataFrame) -> pandas.DataFrame:
    """Rows of cases all of whose settings are stated, of a script, of the engine's release or of a rule with its document."""
    return errors[errors["inferred"] == 0]


def rankings(outcomes: Sequence[Outcome]) -> pandas.DataFrame:
    """How the simulator orders parallelisms that were measured under equal load.

    Groups have equal model, GPU kind, engine, version, lengths and either equal concurrency or equal
    concurrency per GPU. Per kind of load and measure: number of groups, pairs, Kendall's tau over all pairs
    (concordant less discordant, over both; pairs published within NOISE of each other do not count), and the
    share of groups in which the parallelism that is simulated as best was published within NOISE of the best.
    """
    found = []
    for load in LOADS:
        for measure in MEASURES:
            pairs = [list(group.values()) for group in _ranked_groups(outcomes, load, measure).values()]
            found.append({"load": load, "measure": measure, **_kendall(pairs, lowest=measure == "TPOT")})
    return pandas.DataFrame(found)


def _ranked_groups(outcomes: Sequence[Outcome], load: str, measure: str) -> dict[tuple[object, ...], dict[str, Pair]]:
    """Parallelisms under equal load, of two at least."""
    groups: dict[tuple[object, ...], dict[str, Pair]] = {}
    for outcome in outcomes:
        if pair := _ranked(outcome, measure):
            groups.setdefault(load_key(outcome.case, load), {}).setdefault(parallelism(outcome), pair)
    return {key: group for key, group in groups.items() if len(group) > 1}


def misordered(outcomes: Sequence[Outcome], load: str, measure: str) -> Iterator[tuple[tuple[object, ...], str, str, Pair, Pair]]:
    """Pairs that `rankings` finds in the other order: their group, the two parallelisms and the figures of both."""
    for key, group in _ranked_groups(outcomes, load, measure).items():
        for (one, (a, x)), (other, (b, y)) in itertools.combinations(group.items(), 2):
            if _differ(a, b) and (a - b) * (x - y) <= 0:
                yield key, one, other, (a, x), (b, y)


def load_key(case: Case, load: str) -> tuple[object, ...]:
    """Equal for cases that one group of `rankings` holds."""
    fields = case.fields
    clients = float(fields["load_value"])
    names = ("family", "model", "weights_dtype", "gpu_key", "engine", "engine_version", "isl", "osl", "lengths")
    return (*(fields[name] for name in names), clients / (num_gpus(case) if load.endswith("GPU") else 1))


def num_gpus(case: Case) -> int:
    if case.fields["layout"] == "pd":
        return case.whole("num_gpus", 1)
    return case.whole("tp", 1) * case.whole("pp", 1) * case.whole("attention_dp", 1) * case.whole("replicas", 1)


def tokens(outcome: Outcome, column: str) -> int:
    """The longest length that the column states."""
    found = lengths.read(outcome.case.fields[column])
    assert found, "a case without lengths has no comparisons"
    return found.most


def _ranked(outcome: Outcome, measure: str) -> Pair | None:
    """(published, simulated) of a closed loop. Throughput follows from Little's law, for both alike:
    C requests are in flight, each for TTFT + (output - 1) TPOT."""
    ttft, tpot = outcome.simulated("TTFT"), outcome.simulated("TPOT")
    if outcome.case.fields["load_kind"] != "closed_loop" or ttft is None or tpot is None:
        return None
    if measure == "TPOT":
        return tpot.published, tpot.simulated
    output, clients = tokens(outcome, "osl"), float(outcome.case.fields["load_value"])
    made = clients * output / num_gpus(outcome.case)
    published = made / (ttft.published + (output - 1) * tpot.published)
    return published, made / (ttft.simulated + (output - 1) * tpot.simulated)


def _kendall(groups: Sequence[Sequence[Pair]], *, lowest: bool) -> dict[str, float]:
    sign = 1 if lowest else -1
    agree = disagree = best = 0
    for group in groups:
        chosen = min(group, key=lambda pair: sign * pair[1])[0]
        best += not _differ(chosen, min(group, key=lambda pair: sign * pair[0])[0])
        for (a, x), (b, y) in itertools.combinations(group, 2):
            if _differ(a, b):
                agree += (a - b) * (x - y) > 0
                disagree += (a - b) * (x - y) <= 0
    pairs = agree + disagree
    return {
        "groups": len(groups),
        "pairs": pairs,
        "tau": (agree - disagree) / pairs if pairs else math.nan,
        "best_found": best / len(groups) if groups else math.nan,
    }


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > NOISE * min(a, b)
