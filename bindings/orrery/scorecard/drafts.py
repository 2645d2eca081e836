"""Speculative decoding of published rows: what drafts, how many tokens, and how many of them are accepted.

Rows say it in their parallelism ("TP8 MTP3"), in a column `spec_decoding`, in their version or notes. Without a stated
acceptance nothing of such a row can be simulated: it is listed, and never simulated as plain decoding.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

COLUMNS = ("parallelism", "batch_or_concurrency", "phase", "engine_version", "notes")
WORDS = r"mtp|eagle|medusa|speculati(?:ve|on)|spec[ _-]?dec(?:oding|ode)?|draft (?:model|tokens?)|n-?gram|lookahead decoding"
# A word before or behind one of these says that it was off.
OFF_BEFORE = r"\b(?:no|not?|non|without|w/o|disabled?|off)[ :=-]*(?:simulated )?"
OFF_BEHIND = r"[ :=_-]*(?:decoding|decode|tokens?)?[ :=_-]*\(?(?:off|disabled|none|no|false|0)\b(?![.\d])"
NONE = ("", "none", "no", "off", "false", "0", "n/a")
METHODS = (("mtp", r"mtp"), ("eagle", r"eagle"))
STEPS = 60  # of halving, when an acceptance is solved for


@dataclasses.dataclass(frozen=True)
class Drafts:
    method: str  # as a scenario has it; empty where the row's is not simulated
    tokens: int | None
    length: float | None  # tokens that a step makes of a sequence, the one that is always accepted included

    @property
    def reason(self) -> str:
        """Why this cannot be simulated; nothing where it can."""
        if self.length is None:
            return "speculative decoding; acceptance is not stated"
        if not self.tokens:
            return "speculative decoding; the number of draft tokens is not stated"
        if not self.method:
            return "speculative decoding; drafts that are neither MTP nor EAGLE are not simulated"
        if not 1 <= self.length <= 1 + self.tokens:
            return f"speculative decoding; found {self.length:g} tokens a step, expected 1 to {1 + self.tokens} with {self.tokens} drafts"
        return ""

    def yaml(self) -> str:
        """Of `engine`: every draft is accepted alike, given those before it."""
        assert self.tokens and self.length
        each = ", ".join([f"{_acceptance(self.length, self.tokens):.6g}"] * self.tokens)
        return f"{{method: {self.method}, num_speculative_tokens: {self.tokens}, acceptance: [{each}]}}"


def read(fields: Mapping[str, str]) -> Drafts | None:
    """None: the row decodes token by token."""
    column = fields.get("spec_decoding", "").strip().lower()
    text = "; ".join(fields[name] for name in COLUMNS).lower()
    if column in NONE and not _is_on(text):
        return None
    text = f"{column}; {text}"
    tokens = _tokens(text)
    return Drafts(next((name for name, word in METHODS if re.search(word, text)), ""), tokens, _length(text, tokens))


def _is_on(text: str) -> bool:
    on = re.sub(rf"(?:{OFF_BEFORE})(?:{WORDS})\d?\w*|(?<![a-z])(?:{WORDS}){OFF_BEHIND}", " ", text)
    return re.search(rf"(?<![a-z])(?:{WORDS})(?![a-z])|(?<![a-z])mtp", on) is not None


def _tokens(text: str) -> int | None:
    """Of "MTP3", "3 draft tokens", "num_speculative_tokens: 3", "K=3"."""
    found = re.search(
        r"(?<![a-z])mtp[ =:-]?(\d{1,2})(?![.\d])|\b(\d{1,2}) (?:draft|speculative|speculated)(?: tokens?|s)?\b"
        r"|\b(?:num[_ -])?(?:speculative|draft)[_ -]tokens?[ =:]+(\d{1,2})\b|\bnextn[ =:]*(\d{1,2})\b|\bk ?= ?(\d{1,2})\b",
        text,
    )  # fmt: skip
    return next((int(group) for group in found.groups() if group), None) if found else None


def _length(text: str, tokens: int | None) -> float | None:
    """Of "acceptance length 2.4", or of "acceptance rate 0.7" and "70 %": accepted drafts over all drafts, as vLLM prints them."""
    number = r"[ a-z]{0,12}[ =:~]+(\d+(?:\.\d+)?)( ?%)?"
    if found := re.search(r"accept(?:ance|ed)[ _-]len(?:gth)?" + number, text):
        return float(found[1])
    if tokens and (found := re.search(r"accept(?:ance|ed)(?:[ _-](?:rate|ratio))?" + number, text)):
        share = float(found[1]) / (100 if found[2] else 1)
        return 1 + tokens * share if share <= 1 else None
    return None


def _acceptance(length: float, tokens: int) -> float:
    """The acceptance of each draft with which a step makes `length` tokens: 1 + a + ... + a^tokens."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if sum(middle**i for i in range(tokens + 1)) < length:
            low = middle
        else:
            high = middle
    return high
