"""Types of options for argparse."""

from __future__ import annotations

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


__all__ = ["whole_number"]
