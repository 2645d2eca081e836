"""Lengths of prompts and outputs as published rows write them: "1024", "~1024", "8k", "1024 (uniform 0.8-1.0x)",
"uniform(0..1000), mean 610", "1,024 tokens", "uniform 512-1536", "800~1200"."""

from __future__ import annotations

import dataclasses
import re

THOUSAND = 1024  # "8k" is 8,192 tokens: benchmarks of that name set 8192 (InferenceX's 8k1k)
MOST_TOKENS = 10**9  # of one length; more is no length

NUMBER = r"([1-9][0-9]*)"
ENDS = r"[1-9][0-9]*[kK]?"  # of a range


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Uniform from `least` to `most`, both included; equal ends are one length."""

    least: int
    most: int

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2

    def yaml(self) -> str:
        """As a scenario has it."""
        return str(self.most) if self.least == self.most else f"{{min: {self.least}, max: {self.most}}}"


def read(text: str) -> Lengths | None:
    """What a cell says; None where it states no length, or a mean without a spread."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r" *\b(tokens?|toks?)$", "", text.strip()))
    if found := re.fullmatch(rf"~?{NUMBER}([kK]?)", text):
        return _within(*2 * (int(found[1]) * (THOUSAND if found[2] else 1),))
    if found := re.fullmatch(rf"{NUMBER} \(uniform (0\.[0-9]+)-1(?:\.0)?x\)", text):
        return _within(int(float(found[2]) * int(found[1])), int(found[1]))
    if found := re.fullmatch(rf"(?:uniform:? *)?[(\[]?({ENDS})(?:-|~|\u2013| to |, ?)({ENDS})[)\]]?", text):
        return _within(*(int(end.rstrip("kK")) * (THOUSAND if end[-1] in "kK" else 1) for end in found.groups()))
    if found := re.fullmatch(rf"uniform\(([0-9]+)\.\.{NUMBER}\)(?:, mean ([0-9.]+))?", text):
        least, most = int(found[1]), int(found[2])
        return _with_mean(least, most, float(found[3])) if found[3] else _within(least, most)
    return None


def _with_mean(least: int, most: int, mean: float) -> Lengths | None:
    """The widest part of the range that has this mean: what few requests drew from it."""
    if not least <= mean <= most:
        return None
    spread = min(mean - least, most - mean)
    return _within(round(mean - spread), round(mean + spread))


def _within(least: int, most: int) -> Lengths | None:
    """A request has a token at least."""
    return Lengths(max(least, 1), most) if least <= most <= MOST_TOKENS else None
