"""Types of options for argparse."""

from __future__ import annotations

import argparse
import difflib
import pathlib
from collections.abc import Callable


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Parses a whole number within bounds; argparse quotes them where it is none."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    parse.__name__ = f"whole number from {least:,} to {most:,}"  # "invalid ... value: '0'"
    return parse


def seconds(text: str) -> float:
    """Parses a time with its unit, "50 us" or "50us", at least 0."""
    from . import _core

    try:
        value = _core.parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected at least 0 s")
    return value


def scenario_file(text: str) -> pathlib.Path:
    """A path as it is, or the file of a shipped scenario that `text` names where there is no such path."""
    from .scenarios import shipped_scenarios

    path = pathlib.Path(text)
    if path.exists() or path.suffix:
        return path
    shipped = shipped_scenarios()
    if text in shipped:
        return shipped[text]
    if len(path.parts) != 1:
        return path
    near = difflib.get_close_matches(text, shipped, n=1, cutoff=0)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    known = ", ".join(name for name in shipped if "/" not in name)
    raise argparse.ArgumentTypeError(f"no such file, nor a scenario of the name '{text[:100]}'{meant} Known: {known}, and those in directories of scenarios/")


__all__ = ["scenario_file", "seconds", "whole_number"]
