"""Plans with attention and FFNs on GPUs of their own: the best of them beside the best of the others, and their closed form.

With T_a and T_f what one micro-batch takes of attention and of FFNs in a layer and T_c its way from one to the other,
MegaScale-Infer (arXiv 2504.02263, section 4.1) asks for T_a ~ T_f and m >= 2 (1 + T_c / T_f) micro-batches.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _core
from .driver import Exploration

MOST_APART = 4  # plans with FFNs apart that the answer shows


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Candidates that meet the SLO, best first: those with FFNs apart, and the best of the others."""

    apart: list[int]
    together: int | None


def best_of_kinds(found: Exploration) -> Kinds | None:
    """None where no plan has FFNs apart, or where none at all meets the SLO."""
    num_ffn_gpus = found.columns["num_ffn_gpus"]
    apart = {i for i, gpus in enumerate(num_ffn_gpus) if gpus > 0}
    if not apart or not found.ranking:
        return None
    together = set(range(len(num_ffn_gpus))) - apart
    of_apart, of_together = (_ranking(found, members) for members in (apart, together))
    return Kinds(of_apart, of_together[0] if of_together else None)


def _ranking(found: Exploration, members: set[int]) -> list[int]:
    """Of the kind that the best plan is of, what the whole search found."""
    if found.ranking[0] in members:
        return [i for i in found.ranking if i in members]
    return found.best_among(members) if members else []


def closed_form(found: Exploration, candidate: int) -> dict[str, Any] | None:
    """A decode step of the mean batch of the plan's service, which has mean contexts. None where prefill and decode are apart."""
    if found.columns["prefill_replicas"][candidate] > 0:
        return None
    outcome, scenario = found.outcomes[candidate], found.space.scenario(candidate)
    decodes = max(1, round(outcome["mean_batch"]))
    context = round((outcome["prompt_tokens"] + outcome["output_tokens"] / 2) / outcome["requests"])
    step = _core.explain_step(scenario, _core.Batch(num_decodes=decodes, decode_context=decodes * context))
    attention, ffn = step["sides"]
    way = (attention["way_s"] + ffn["way_s"]) / 2
    return {
        "decodes": decodes, "context": context, "step_s": step["duration_s"],
        "attention_s": attention["turn_s"], "ffn_s": ffn["turn_s"], "way_s": way,
        "balance": attention["turn_s"] / ffn["turn_s"], "micro_batches_asked": 2 * (1 + way / ffn["turn_s"]),
        "attention_bubble": attention["bubble_share"], "ffn_bubble": ffn["bubble_share"],
    }  # fmt: skip
