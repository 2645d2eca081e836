"""Numbers as people read them: three significant digits, a prefix that fits, always a unit.

One rule for bytes, here and in the terminal: what a memory holds is in GiB, what moves per second in GB/s.
"""

from __future__ import annotations

import math
import re

NO_VALUE = "–"

_SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([a-zµ]+)")


def is_number(value: object) -> bool:
    """True for a finite int or float; bool is not a number here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None) -> str:
    """`value` with three significant digits or more, and thousands separators: 0.750, 92.2, 1,279."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")  # first, since 0.9996 becomes 1.00
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    return NO_VALUE if value is None or not math.isfinite(value) else f"{round(value):,}"


def seconds(value: float | None) -> str:
    """A duration in us, ms or s; from ten minutes on in min, from two hours on in h."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    magnitude = abs(value)
    if magnitude == 0:
        return "0 s"
    if magnitude < 0.9995e-3:
        return f"{number(value * 1e6)} µs"
    if magnitude < 0.9995:
        return f"{number(value * 1e3)} ms"
    if magnitude < 600:
        return f"{number(value)} s"
    if magnitude < 7200:
        return f"{number(value / 60)} min"
    return f"{number(value / 3600)} h"


def short_seconds(value: float) -> str:
    """A chosen duration (a tick, a limit) in us, ms or s, with no more digits than it needs."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 0.9995 * scale:
            return f"{value / scale:,.6g} {unit}"
    return "0" if value == 0 else f"{value * 1e9:.6g} ns"


def gibibytes(value: float | None) -> str:
    return NO_VALUE if value is None or not math.isfinite(value) else f"{number(value / 2**30)} GiB"


def percent(share: float | None) -> str:
    """`share` of 1 as a percentage; never rounds up to 100 % or down to 0 %."""
    if share is None or not math.isfinite(share):
        return NO_VALUE
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    value = 100 * share
    if value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %"


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as "50 ms". Throws ValueError without a number and a known unit."""
    match = _TIME.fullmatch(text.strip())
    if not match or match[2] not in _SECONDS_PER_UNIT:
        raise ValueError(f"found '{text}', expected a duration such as '50 ms'")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
