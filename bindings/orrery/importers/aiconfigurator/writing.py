"""Writes tables with their meta.yaml and NOTICE; the same rows give the same bytes."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE_REPOSITORY = "https://github.com/ai-dynamo/aiconfigurator"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
LICENSE_NAME = "Apache-2.0"


@dataclass
class Written:
    """What was written for one kernel or collective."""

    rows: int = 0
    sources: list[str] = field(default_factory=list)  # implementation by code
    files: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # rows of the source by reason
    notes: tuple[str, ...] = ()


def microseconds(milliseconds: str) -> str:
    """Microseconds with six significant digits from milliseconds in text; throws ValueError unless above 0."""
    if not float(milliseconds) > 0:
        raise ValueError(f"latency {milliseconds}; expected more than 0")
    return f"{float(milliseconds) * 1e3:.6g}"


def yaml_text(text: str) -> str:
    """`text` as a quoted YAML scalar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_csv(path: Path, header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """Write one table, making its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_meta(directory: Path, head: list[str], tables: dict[str, Written]) -> None:
    """Write meta.yaml: provenance, `head`, and what each table holds."""
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
    (directory / "meta.yaml").write_text("\n".join(lines) + "\n")


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
