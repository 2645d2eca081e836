"""Writes tables with their meta.yaml and NOTICE; the same rows give the same bytes."""

from __future__ import annotations

import contextlib
import csv
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ... import files
from ...calibrate import merged
from .reading import TableError

SOURCE_REPOSITORY = "https://github.com/ai-dynamo/aiconfigurator"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
LICENSE_NAME = "Apache-2.0"

# Of a provider, or of a machine's collectives.
TABLES = files.Kind(
    "directory of tables", required=(), names=("*.csv", "*.yaml", "NOTICE", "held_out.txt", "links/*.csv", "links/*.yaml")
)
_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)


@dataclass
class Written:
    """What was written for one kernel or collective."""

    rows: int = 0
    sources: list[str] = field(default_factory=list)  # implementation by code
    files: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # rows of the source by reason
    notes: tuple[str, ...] = ()


class Staged:
    """Directories of tables under `topologies` that grow beside their places and get there together, or not at all.

    A directory that is there already is copied first: its other tables, and what meta.yaml says of them, stay.
    """

    def __init__(self, topologies: Path, stack: contextlib.ExitStack, *, force: bool) -> None:
        self._topologies = topologies
        self._stack = stack
        self._force = force
        self._targets: dict[Path, Path] = {}

    def directory(self, *parts: str) -> Path:
        """The directory that will be topologies/<parts>. Throws TableError for a part that leads elsewhere."""
        for part in parts:
            if not _NAME.fullmatch(part):
                raise TableError(f"found '{part}' as a name of a directory; expected letters, digits and '._+-', no path")
        target = self._topologies.joinpath(*parts)
        new = self._stack.enter_context(files.publishing(target, TABLES, force=True))
        if target.is_dir():
            shutil.copytree(target, new, dirs_exist_ok=True)
        self._targets[new] = target
        return new

    def require_new(self, directory: Path, tables: Iterable[str]) -> None:
        """Throws FileExistsError naming those of `tables` that are there, unless they are to be replaced."""
        old = [f"{table}.csv" for table in tables if (directory / f"{table}.csv").exists()]
        if old and not self._force:
            raise FileExistsError(f"'{self._targets[directory]}' has {', '.join(old)}; expected none of them, or --force to replace them")


@contextlib.contextmanager
def staging(topologies: Path, *, force: bool = False) -> Iterator[Staged]:
    """Where to import to; what was staged is published when the block ends, and nothing of it when it raises."""
    with contextlib.ExitStack() as stack:
        yield Staged(topologies, stack, force=force)


def microseconds(milliseconds: str) -> str:
    """Microseconds with six significant digits from milliseconds in text; throws ValueError unless 1 ns to an hour."""
    try:
        value = float(milliseconds)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(f"latency {milliseconds[:60]}; expected more than 0")
    if not 1e-6 <= value <= 3.6e6:
        raise ValueError(f"latency {milliseconds[:60]}; expected milliseconds, from 1 ns to an hour")
    return f"{value * 1e3:.6g}"


def yaml_text(text: str) -> str:
    """`text` as a quoted YAML scalar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_csv(path: Path, header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """Write one table."""
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_meta(directory: Path, head: list[str], tables: dict[str, Written]) -> None:
    """Write meta.yaml: provenance, `head`, and what each table holds; entries of other tables stay as they are."""
    lines = [
        *head,
        f"source_repository: {SOURCE_REPOSITORY}",
        f"licence: {LICENSE_NAME}  # full text: topologies/LICENSE-APACHE-2.0",
        f"copyright: {yaml_text(COPYRIGHT)}",
        "tables:",
    ]
    for name, written in tables.items():
        lines.append(f"  {name}:")
        lines.append(f"    rows: {written.rows}")
        lines.append("    from: [" + ", ".join(yaml_text(file) for file in written.files) + "]")
        if written.sources:
            lines.append("    sources:  # meaning of the column `source`")
            lines += [f"      {code}: {yaml_text(text)}" for code, text in enumerate(written.sources)]
        if written.left_out:
            lines.append("    left_out:  # rows of the source")
            lines += [f"      {yaml_text(reason)}: {count}" for reason, count in sorted(written.left_out.items())]
        if written.notes:
            lines.append("    notes:")
            lines += [f"      - {yaml_text(note)}" for note in written.notes]
    path = directory / "meta.yaml"
    text = "\n".join(lines) + "\n"
    path.write_text(merged(path.read_text(), text) if path.is_file() else text)


def write_notice(directory: Path, subject: str) -> None:
    """Write NOTICE, which the licence asks for."""
    (directory / "NOTICE").write_text(
        "The tables in this directory come from AIConfigurator's measured op database\n"
        f"({SOURCE_REPOSITORY}), {subject}.\n"
        f"{COPYRIGHT}\n"
        "SPDX-License-Identifier: Apache-2.0 (full text: topologies/LICENSE-APACHE-2.0).\n"
        "Changed: columns renamed, units converted, rows selected and sorted; no measured value was\n"
        "altered beyond rounding to six significant digits.\n"
    )
