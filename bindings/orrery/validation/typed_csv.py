"""CSV files read into typed columns: a value that a column cannot hold is an error that names file, line and column.

Files that a program wrote end with a line end, so one that does not was cut.
"""

from __future__ import annotations

import csv
import io
import math
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Column = Callable[[str], Any]
"""The value of a cell; raises ValueError whose text says what is expected."""
Columns = Mapping[str, Column]

MOST_SECONDS = 1e11  # 3,000 years: no clock says more, and sums of squares stay finite
MOST_BYTES = 1e18
MOST_WHOLE = 2**53  # beyond it floats skip whole numbers


def word(cell: str) -> str:
    """Anything but nothing."""
    if not cell:
        raise ValueError("a word")
    return cell


def one_of(*words: str) -> Column:
    """One of `words`."""

    def read(cell: str) -> str:
        if cell not in words:
            raise ValueError(", ".join(words[:-1]) + f" or {words[-1]}")
        return cell

    return read


def whole(least: int, most: int = MOST_WHOLE) -> Column:
    """A whole number from `least` to `most`."""

    def read(cell: str) -> int:
        # int() itself takes "1_000", " 7" and digits of other scripts, and text without bound.
        is_number = len(cell) <= 20 and cell.isascii() and cell.removeprefix("-").isdigit()
        if not is_number or not least <= int(cell) <= most:
            bound = f"at least {least}" if most == MOST_WHOLE else f"{least} to {most}"
            raise ValueError(f"a whole number, {bound}")
        return int(cell)

    return read


def number(expected: str, holds: Callable[[float], bool]) -> Column:
    """A finite number for which `holds` is true; `expected` names it."""

    def read(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            raise ValueError(expected) from None
        if not math.isfinite(value) or not holds(value):
            raise ValueError(expected)
        return value

    return read


seconds = number("seconds, 0 or more", lambda value: 0 <= value <= MOST_SECONDS)
share = number("a share, above 0 and at most 1", lambda value: 0 < value <= 1)
duration = number("seconds, at least 1 ns", lambda value: 1e-9 <= value <= MOST_SECONDS)
size = number("bytes, 0 or more", lambda value: 0 <= value <= MOST_BYTES)
any_text: Column = str  # what is only shown


def or_empty(column: Column) -> Column:
    """NaN where the cell is empty."""
    return lambda cell: column(cell) if cell else math.nan


def rows(path: pathlib.Path, columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and cells of `columns`, others left out. Raises ValueError naming file, line and column."""
    content = read_text(path)
    if content and not content.endswith("\n"):
        raise ValueError(f"{path}: the last line has no end: the file is cut")
    lines = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        header = next(lines, [])
        lacking = [name for name in columns if name not in header]
        if lacking:
            raise ValueError(f"{path}: found no column {', '.join(lacking)}")
        places = [(name, header.index(name), column) for name, column in columns.items()]
        for cells in lines:
            if len(cells) != len(header):
                ends = "ends early" if len(cells) < len(header) else "is too long"
                raise ValueError(f"{path}:{lines.line_num}: the line {ends}: found {len(cells)} cells, expected {len(header)}")
            yield lines.line_num, {name: _cell(path, lines.line_num, name, column, cells[at]) for name, at, column in places}
    except csv.Error as error:
        raise ValueError(f"{path}:{lines.line_num}: {error}") from None


def header(path: pathlib.Path) -> Collection[str]:
    """Names of the columns."""
    return read_text(path).partition("\n")[0].rstrip("\r").split(",")


def read_text(path: pathlib.Path) -> str:
    """The file's text. Raises ValueError where it is absent or no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"found no '{path}'; the directory is not whole") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
    except IsADirectoryError:
        raise ValueError(f"'{path}' is a directory, expected a file") from None


def shown(cell: str) -> str:
    """A cell for a message, cut where it is long."""
    return f"'{cell if len(cell) <= 60 else cell[:60] + '...'}'"


def _cell(path: pathlib.Path, line: int, name: str, column: Column, cell: str) -> Any:
    try:
        return column(cell)
    except ValueError as error:
        raise ValueError(f"{path}:{line}: column {name}: found {shown(cell)}, expected {error}") from None
