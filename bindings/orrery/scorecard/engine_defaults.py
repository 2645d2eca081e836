"""What an engine does where nothing is set: data/serving/engine_defaults.csv, by engine, release and setting.

Only lines with a `formula` are read; `value` beside it is what the engine's source says, in words.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping

from ..simulation import project_root
from . import expressions
from .expressions import NotUnderstood, Value
from .launch import version_key

COLUMNS = ("engine", "version_from", "version_to", "setting", "value", "formula", "repository", "path", "commit", "note")


@dataclasses.dataclass(frozen=True)
class Default:
    value: Value
    source: str
    is_read: bool  # the release is among those that were read, not just near one
    is_same: bool  # in every release that was read


@dataclasses.dataclass(frozen=True)
class _Line:
    number: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    cells: Mapping[str, str]


def read(path: pathlib.Path) -> list[_Line]:
    """Lines with a formula. Throws ValueError with file, line and column."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}:1: missing column '{missing[0]}'; expected {', '.join(COLUMNS)}")
        lines = []
        for row in reader:
            if not row["formula"]:
                continue
            first, _, last = row["version_from"].partition(" to ")
            versions = [first, row["version_to"] or last or first]
            if not all(re.match(r"\d", version) for version in versions):
                raise ValueError(f"{path}:{reader.line_num}: column 'version_from': found '{row['version_from']}', expected a release")
            lines.append(_Line(reader.line_num, version_key(versions[0]), version_key(versions[1]), row))
        return lines


@functools.cache
def shipped() -> tuple[_Line, ...]:
    return tuple(read(project_root() / "data" / "serving" / "engine_defaults.csv"))


def default(engine: str, version: str, setting: str, names: Mapping[str, Value]) -> Default | None:
    """What `engine` does in this release, or in the nearest one that was read; None where none was."""
    lines = [line for line in shipped() if line.cells["engine"] == engine and line.cells["setting"] == setting]
    if not lines or not version:
        return None
    key = version_key(version)
    within = [line for line in lines if line.first <= key <= line.last]
    earlier = [line for line in lines if line.first <= key]
    line = max(within or earlier or [min(lines, key=lambda line: line.first)], key=lambda line: line.first)
    value = _value(line, names)
    source = f"engine_defaults.csv:{line.number}: {line.cells['path']}, {line.cells['commit']}"
    is_same = all(_value(other, names) == value for other in lines)
    return Default(value, source if within else f"{source}, the nearest release to {version} that was read", bool(within), is_same)


def _value(line: _Line, names: Mapping[str, Value]) -> Value:
    text = line.cells["formula"]

    def resolve(name: str) -> Value:
        if name not in names:
            raise NotUnderstood(f"engine_defaults.csv:{line.number}: unknown variable {name}")
        return names[name]

    return text if re.fullmatch(r"[a-z_]+", text) else expressions.formula(text, resolve)
