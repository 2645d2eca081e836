"""Layers in the names of ops: those that are alike are simulated as one, `layers.3.o_proj` with a number of copies."""

from __future__ import annotations

import re
from collections.abc import Mapping

OF_LAYER = re.compile(r"layers\.(\d+)\.(.*)", re.DOTALL)


def lengths(copies: Mapping[str, int]) -> dict[int, int]:
    """By layer that stands for others: how many layers its copies lie apart, those of the run of layers that repeats. `copies` by op."""
    counts: dict[int, int] = {}
    for name, count in copies.items():
        if found := OF_LAYER.fullmatch(name):
            counts[int(found[1])] = max(counts.get(int(found[1]), 0), count)
    apart = {}
    for first in counts:
        begin, end = first, first + 1
        while counts[first] > 1 and counts.get(begin - 1) == counts[first]:
            begin -= 1
        while counts[first] > 1 and counts.get(end) == counts[first]:
            end += 1
        apart[first] = end - begin
    return apart


def names(copies: Mapping[str, int]) -> dict[str, str]:
    """By op: `layers.0..79.o_proj`, or `layers.0,2..22.o_proj` where every second layer is such a one."""
    apart = lengths(copies)
    words = {}
    for name, count in copies.items():
        found = OF_LAYER.fullmatch(name)
        if found is None or count == 1:
            words[name] = name
            continue
        first, step = int(found[1]), apart[int(found[1])]
        last = first + (count - 1) * step
        between = f"{first}..{last}" if step == 1 else f"{first},{first + step}..{last}" if count > 2 else f"{first},{last}"
        words[name] = f"layers.{between}.{found[2]}"
    return words


__all__ = ["OF_LAYER", "lengths", "names"]
