"""JSON files of other programs: one value, or one in each line; gzip or not."""

from __future__ import annotations

import gzip
import json
import pathlib
import zlib
from typing import Any

_MOST_BYTES = 4 << 30


def read(path: pathlib.Path, expected: str) -> list[Any]:
    """The file's values, one or one for each line. `expected` says in errors what would do.

    Raises ValueError that names the file and repeats nothing of it.
    """
    text = _text(path)
    if not text.strip():
        raise ValueError(f"{path}: found an empty file; expected {expected}")
    try:
        return [json.loads(text)]
    except RecursionError:
        raise ValueError(f"{path}: found JSON nested too deeply; expected {expected}") from None
    except ValueError as error:
        whole = error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                raise ValueError(f"{path}: neither JSON ({whole}) nor JSON in each line (line {number}); expected {expected}") from None
    return found


def unpacked(path: pathlib.Path) -> bytes:
    """The bytes of a file, or what gzip packed in it. Raises ValueError."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged gzip: {error}") from None
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: found more than {_MOST_BYTES:,} bytes; expected at most that")
    return content


def _text(path: pathlib.Path) -> str:
    try:
        return unpacked(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None


__all__ = ["read", "unpacked"]
