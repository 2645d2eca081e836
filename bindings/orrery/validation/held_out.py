"""Kernel tables without the calls that judged steps contain, so that a prediction is not a look-up of what it is judged by.

python3 -m orrery.validation.held_out TABLES DIR… -o OUT     TABLES: topologies/devices/<gpu>/<provider>; DIRs of `orrery validate --plan-only`
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

Call = tuple[str, str, tuple[tuple[str, int], ...]]
"""Kernel, dtype, dims by name."""

_OP = re.compile(r"^op o\d+ (?:\"(?:[^\"\\]|\\.)*\"|\S+) kernel (\S+) (\S+) (.*?)(?: leaves \d+)? g\d+ s\d+", re.MULTILINE)


def kernel_calls(plan: str) -> set[Call]:
    """The kernel calls of a plan's text."""
    found = set()
    for kernel, dtype, dims in _OP.findall(plan):
        sizes = (dim.split(":")[0].split("=") for dim in dims.split())
        found.add((kernel, dtype, tuple(sorted((name, int(size)) for name, size in sizes))))
    return found


def judged_calls(directories: Iterable[pathlib.Path]) -> set[Call]:
    """The kernel calls of all plans of the directories. Raises ValueError when there are none."""
    found: set[Call] = set()
    for directory in directories:
        for plan in sorted((directory / "steps").glob("*.plan")):
            found |= kernel_calls(plan.read_text(encoding="utf-8"))
    if not found:
        raise ValueError("found no plans; expected directories that orrery validate --plan-only wrote")
    return found


def held_out(tables: pathlib.Path, calls: set[Call], into: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Copies <kernel>.csv and meta.yaml of `tables` without rows of `calls`: kernel to rows kept and left out.

    Raises ValueError when a table would have no row left.
    """
    into.mkdir(parents=True, exist_ok=True)
    counts = {}
    for path in sorted(tables.glob("*.csv")):
        lines = path.read_text(encoding="utf-8").splitlines()
        columns = lines[0].split(",")
        dims = columns[columns.index("dtype") + 1 : columns.index("time_us")]
        kept = lines[:1]
        for line, row in zip(lines[1:], csv.DictReader(lines), strict=True):
            call = (path.stem, row["dtype"], tuple(sorted((dim, int(row[dim])) for dim in dims)))
            if call not in calls:
                kept.append(line)
        if len(kept) == 1:
            raise ValueError(f"{path}: every row is of a judged step; measure other shapes")
        (into / path.name).write_text("\n".join(kept) + "\n", encoding="utf-8")
        counts[path.stem] = (len(kept) - 1, len(lines) - len(kept))
    if (tables / "meta.yaml").exists():
        (into / "meta.yaml").write_text((tables / "meta.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return counts


def main(arguments: Sequence[str]) -> int:
    """Writes the tables and prints a line per kernel."""
    parser = argparse.ArgumentParser(prog="orrery.validation.held_out", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", type=pathlib.Path, metavar="TABLES", help="directory of a provider")
    parser.add_argument("directories", nargs="+", type=pathlib.Path, metavar="DIR", help="directories with plans")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="OUT", help="directory to write; its name is the provider's")
    options = parser.parse_args(arguments)
    for kernel, (kept, left_out) in held_out(options.tables, judged_calls(options.directories), options.output).items():
        print(f"{kernel:20} {kept:6} rows, {left_out} left out")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
