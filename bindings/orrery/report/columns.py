"""Columns of numbers from CSV files that may be larger than memory: a part at a time, or packed."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

Columns = dict[str, np.ndarray]

PART_BYTES = 8 << 20  # of text


def parts(path: pathlib.Path, columns: Sequence[str], may_be_empty: Sequence[str] = ()) -> Iterator[Columns]:
    """The named columns as float64 arrays, a part of the rows at a time; in any order, further ones are ignored.

    Throws ValueError naming the file and line of what is missing or no number.
    """
    with path.open("rb") as file:
        names = [name.strip() for name in _text(path, file.readline()).rstrip("\n").split(",")]
        missing = [name for name in columns if name not in names]
        if missing:
            raise ValueError(f"{path}:1: no column {', '.join(missing)}; found {', '.join(names)}")
        line = 2
        while block := file.read(PART_BYTES):
            text = _text(path, block + file.readline())
            if text.strip():
                yield _parse(path, text, line, names, columns, may_be_empty)
            line += text.count("\n")


def packed(path: pathlib.Path, columns: Sequence[str], may_be_empty: Sequence[str] = ()) -> Columns:
    """The whole columns; whole numbers that fit take four bytes each.

    Throws ValueError as `parts` does, and for a file without rows.
    """
    found: dict[str, list[np.ndarray]] = {name: [] for name in columns}
    for part in parts(path, columns, may_be_empty):
        for name, values in part.items():
            found[name].append(np.array(values) if name.endswith("_s") else pack(values))
    if not found[columns[0]]:
        raise no_rows(path)
    return {name: np.concatenate(found.pop(name)) for name in columns}


def no_rows(path: pathlib.Path) -> ValueError:
    return ValueError(f"{path}: found a header and no rows")


def pack(values: np.ndarray) -> np.ndarray:
    """A copy; in four bytes each where all are whole numbers that fit."""
    with np.errstate(invalid="ignore"):
        small = values.astype(np.int32)
    return small if np.array_equal(small, values) else np.array(values)


def _text(path: pathlib.Path, block: bytes) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _parse(
    path: pathlib.Path, text: str, line: int, names: list[str], columns: Sequence[str], may_be_empty: Sequence[str]
) -> Columns:
    indices = [names.index(name) for name in columns]
    # An empty cell is "no value"; loadtxt knows only nan. Twice, for two in a row; then those at the ends of lines.
    filled = text.replace(",,", ",nan,").replace(",,", ",nan,") if ",," in text else text
    filled = filled.replace(",\n", ",nan\n") if ",\n" in filled else filled
    try:
        table = np.loadtxt(io.StringIO(filled), delimiter=",", usecols=indices, comments=None, ndmin=2)
    except ValueError:
        raise ValueError(_first_bad_cell(path, text, line, names, columns)) from None
    result = {name: table[:, i] for i, name in enumerate(columns)}
    for name, values in result.items():
        if name not in may_be_empty and not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0]) + line
            raise ValueError(f"{path}:{bad}: found no finite number in column '{name}'")
        if (values < 0).any():  # counts, and times from the start of the run
            row = int(np.flatnonzero(values < 0)[0])
            raise ValueError(f"{path}:{row + line}: found {values[row]:g} in column '{name}', expected no negative number")
    return result


def _first_bad_cell(path: pathlib.Path, text: str, line: int, names: list[str], columns: Sequence[str]) -> str:
    for number, row in enumerate(text.splitlines(), start=line):
        cells = row.split(",")
        if row and len(cells) != len(names):
            return f"{path}:{number}: found {len(cells)} cells, expected {len(names)} as in the header"
        for name, cell in zip(names, cells):
            try:
                float(cell or "nan")
            except ValueError:
                if name in columns:
                    return f"{path}:{number}: found '{cell}' in column '{name}', expected a number"
    return f"{path}: not a table of numbers"
