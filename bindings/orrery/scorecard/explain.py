"""The worst comparisons, and what is known about where they come from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from . import rules, statistics
from .outcomes import Comparison, Outcome

SAME_RUN = ("model", "gpu_key", "weights_dtype", "isl", "osl", "lengths", "load_kind")


@dataclasses.dataclass(frozen=True)
class Finding:
    outcome: Outcome
    comparison: Comparison
    num_alike: int  # cases of the same family, engine, model, GPU and metric, of which this one is the worst
    sentences: tuple[str, ...]


def worst(outcomes: Sequence[Outcome], limit: int = 20) -> list[Finding]:
    """The worst case of each family, engine, model, GPU kind and metric; the `limit` worst of these, by
    |log(simulated / published)|."""
    groups: dict[tuple[str, ...], list[tuple[Outcome, Comparison]]] = {}
    for outcome in outcomes:
        fields = outcome.case.fields
        for comparison in outcome.comparisons:
            key = (
                *(fields[name] for name in ("family", "engine", "engine_version", "model", "gpu_key")),
                comparison.metric,
            )
            groups.setdefault(key, []).append((outcome, comparison))
    found = [(max(group, key=lambda pair: _distance(pair[1])), len(group)) for group in groups.values()]
    found.sort(key=lambda item: -_distance(item[0][1]))
    return [
        Finding(
            outcome,
            comparison,
            count,
            (_where(outcome), *_settings(outcome), *_implied(outcome), *_neighbours(outcome, comparison, outcomes)),
        )
        for (outcome, comparison), count in found[:limit]
    ]


def _distance(comparison: Comparison) -> float:
    return abs(math.log(comparison.simulated / comparison.published)) if comparison.simulated > 0 else math.inf


def _where(outcome: Outcome) -> str:
    split, basis = outcome.split, outcome.basis
    steps = [
        f"a step {name} prefill takes {1e3 * split[key]:.3g} ms"
        for name, key in (("with", "prefill_step_s"), ("without", "decode_step_s"))
        if split[key] is not None
    ]
    return (
        f"Simulated: a request waits {1e3 * split['wait_s']:.3g} of its {1e3 * split['ttft_s']:.3g} ms "
        "to the first token; "
        f"{', '.join(steps)}; {100 * split['prefill_share']:.0f} % of engine time is in steps with prefill; "
        f"{100 * basis['roofline']:.0f} % of kernel time is roofline."
    )


def _settings(outcome: Outcome) -> list[str]:
    """What scripts set, what the release does where nothing is set, and what nobody says."""
    found = rules.choices(outcome.case.fields)
    sentences = []
    for basis, name in ((rules.SCRIPT, "Scripts set"), (rules.DEFAULT, "Defaults of the release"), (rules.INFERRED, "Inferred")):
        texts = [f"{setting} {_short(choice.value)}" for setting, choice in found.items() if choice.basis == basis]
        if texts:
            sentences.append(f"{name}: {', '.join(texts)}.")
    return sentences


def _short(value: str) -> str:
    return value if len(value) <= 24 else f"{value[:20]} ..."


def _implied(outcome: Outcome) -> list[str]:
    """What the published times of a closed loop mean by Little's law: C requests take TTFT + (output - 1) TPOT
    each. More than a GPU's data sheet allows says that fewer were in flight than stated."""
    ttft, tpot, fields = outcome.simulated("TTFT"), outcome.simulated("TPOT"), outcome.case.fields
    if fields["load_kind"] != "closed_loop" or ttft is None or tpot is None:
        return []
    output = statistics.tokens(outcome, "osl")
    requests_per_s = float(fields["load_value"]) / (ttft.published + (output - 1) * tpot.published)
    flops = (
        requests_per_s * (statistics.tokens(outcome, "isl") + output) * outcome.split["flops_per_token"] / statistics.num_gpus(outcome.case)
    )
    return [
        f"With {fields['load_value']} requests in flight the published times mean "
        f"{requests_per_s * output:,.0f} output tokens/s and {flops / 1e12:,.0f} TFLOP/s on each GPU."
    ]


def _neighbours(outcome: Outcome, comparison: Comparison, outcomes: Sequence[Outcome]) -> list[str]:
    """How the published and the simulated number change to the nearest other source and the nearest other load."""
    fields = outcome.case.fields
    others: dict[str, tuple[float, Outcome, Comparison]] = {}
    for other in outcomes:
        found = other.simulated(comparison.metric)
        if other is outcome or found is None or any(other.case.fields[name] != fields[name] for name in SAME_RUN):
            continue
        distance = abs(math.log(_load(other) / _load(outcome)))
        is_same_source = all(other.case.fields[name] == fields[name] for name in ("family", "engine", "engine_version"))
        if is_same_source and statistics.parallelism(other) == statistics.parallelism(outcome):
            kind = "load"
        elif not is_same_source and distance < 0.1 and other.case.fields["num_gpus"] == fields["num_gpus"]:
            kind = "source"
        else:
            continue
        if kind not in others or distance < others[kind][0]:
            others[kind] = (distance, other, found)
    return [_ratio(kind, comparison, other, found) for kind, (_, other, found) in sorted(others.items())]


def _load(outcome: Outcome) -> float:
    return float(outcome.case.fields["load_value"] or 1)


def _ratio(kind: str, here: Comparison, other: Outcome, there: Comparison) -> str:
    fields = other.case.fields
    what = (
        f"Load {fields['load_value']} of the same source"
        if kind == "load"
        else f"{fields['family']} ({fields['engine']} {fields['engine_version']}, {statistics.parallelism(other)})"
    )
    return (
        f"{what}: published {there.published / here.published:.2f} times this, "
        f"simulated {there.simulated / here.simulated:.2f} times."
    )
