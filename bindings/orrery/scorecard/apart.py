"""Cases whose prefill and decode run on instances of their own, which the text of `parallelism` places:
"PD disagg: prefill TP8 + decode TP8", "PD disagg: 1P(attn TP1 DP4; MoE TP0 EP0; bs 1) + 3D(attn TP4 DP1; ...; bs 24)" or
"1 prefill (TEP4) / 4 decode (DEP8)"."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

from .cases import Case

SIDES = ("prefill", "decode")
WAYS = ("TP", "PP", "DP")
# "1 prefill (TEP4) / 4 decode (DEP8)", "1x prefill TEP4, 4x decode DEP8"
COUNTED = re.compile(r"\b(\d{1,4})x? ?prefill\w*[ (:]+([^()+/]*?)\)?[ ,;+/&]+(\d{1,4})x? ?decode\w*[ (:]+([^()+/]*)\)?", re.IGNORECASE)
# Attention and experts over the same GPUs, attention split by columns (TEP) or by sequences (DEP).
BOTH = {"TEP": r"TP\1 EP\1", "DEP": r"TP1 DP\1 EP\1"}


@dataclasses.dataclass(frozen=True)
class Side:
    instances: int
    tp: int
    pp: int
    dp: int
    ep: int
    batch: int | None  # most sequences of a rank

    @property
    def num_gpus(self) -> int:
        return self.instances * self.tp * self.pp * self.dp

    def yaml(self) -> str:
        seats = f", max_num_seqs: {self.batch}" if self.batch else ""
        return f"{{replicas: {self.instances}, tp: {self.tp}, pp: {self.pp}, dp: {self.dp}, ep: {self.ep}{seats}}}"


def read(case: Case) -> tuple[Side, Side] | None:
    """Prefill and decode; None where the text does not say both."""
    text = case.fields["parallelism"]
    if found := COUNTED.search(text) or re.search(r"\b(\d{1,4})P ?\(([^)]*)\) ?[+/] ?(\d{1,4})D ?\(([^)]*)\)", text):
        sides = (_side(int(found[1]), found[2]), _side(int(found[3]), found[4]))
    elif found := re.search(r"\bprefill ([^+]*) \+ decode (.*)", text):
        # "1P1D" and the like in the notes; one instance of each where they say nothing.
        stated = re.search(r"\b(\d{1,4})P(\d{1,4})D\b", case.fields["notes"])
        counts = (int(stated[1]), int(stated[2])) if stated else (1, 1)
        sides = (_side(counts[0], found[1]), _side(counts[1], found[2]))
    else:
        return None
    return sides if all(sides) else None


def _side(instances: int, text: str) -> Side | None:
    for name, ways_of_both in BOTH.items():
        text = re.sub(rf"\b{name}([1-9]\d{{0,3}})\b", ways_of_both, text)
    attention, _, rest = text.partition(";")
    ways = {name: re.search(rf"\b{name}([1-9]\d{{0,3}})\b", attention) for name in WAYS}
    if instances < 1 or not (ways["TP"] or ways["DP"]):
        return None
    tp, pp, dp = (int(ways[name][1]) if ways[name] else 1 for name in WAYS)
    experts = re.search(r"\bEP([1-9]\d{0,3})\b", text)  # EP0: not stated, so their columns are split
    batch = re.search(r"\bbs ([1-9]\d{0,5})\b", rest)
    return Side(instances, tp, pp, dp, int(experts[1]) if experts else 1, int(batch[1]) if batch else None)


def placement(sides: tuple[Side, Side], case: Case) -> str:
    """The scenario's `disaggregation`. The notes may state what all NICs of a node carry together."""
    stated = re.search(r"\b(\d+)x CX-?\d+ \(theoretical ~?(\d+) GB/s\)", case.fields["notes"])
    rate = f", transfer: {{rate: {int(stated[2]) / int(stated[1]):g} GB/s}}" if stated else ""
    return "{" + ", ".join(f"{name}: {side.yaml()}" for name, side in zip(SIDES, sides, strict=True)) + rate + "}"


def as_clients_see(case: Case, summary: dict[str, Any]) -> dict[str, Any]:
    """With vLLM the first token that a client sees is the decode instance's: its proxy asks the prefill instance
    for one token, which it throws away, and the decode instance computes that token again once it has the KV cache
    (vllm, examples/online_serving/disaggregated_serving/disagg_proxy_demo.py: max_tokens = 1)."""
    if "disaggregation" not in summary or case.fields["engine"] != "vllm":
        return summary
    seen = copy.deepcopy(summary)
    waits = seen["disaggregation"]["transfer"]["second_token_s"]
    for quantile, wait in waits.items():
        if seen["ttft_s"].get(quantile) is not None and wait is not None:
            seen["ttft_s"][quantile] += wait
    return seen
