"""Text for terminals: tables, and what others wrote."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence


def printable(text: str, *, keep: str = "\n") -> str:
    """`text` with escapes for what would steer a terminal or reverse its lines; characters of `keep` stay.

    A scenario's question, a name, a cell quoted in an error come from files: they may say anything, but not clear a screen.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) if c not in keep else c for c in text)


def _visible(c: str) -> str:
    if unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in _OVERRIDES:
        return c.encode("unicode_escape", "surrogatepass").decode()
    return c


_OVERRIDES = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Columns two spaces apart; those in `right` are flush right. Cells are made printable."""
    table = [[printable(cell, keep="") for cell in row] for row in ((header, *rows) if header else rows)]
    if not table:
        return ""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    """Three digits with a unit."""
    if value is None:
        return "–"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}" if abs(value * factor) < 999.5 else f"{value * factor:.0f} {unit}"
    return f"{value / 60:.1f} min"
