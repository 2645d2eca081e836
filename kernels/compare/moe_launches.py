"""Launches of a layer of experts and the share of communication, design beside design, from what `orrery-gpu moe` wrote.

python3 kernels/compare/moe_launches.py DIR [DIR ...]

Each DIR holds rows.csv (kernels/tool/moe.cpp). Prints a table in Markdown: a line for each case that ran, those of the same
layer beneath each other. Of a layer over several ranks that is one kernel no communication is told apart.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HEADER = ("layer", "tokens a GPU", "GPUs", "format", "load", "design", "launches", "host syncs", "us", "communication us", "share", "exposed us")


def read(directories: Iterable[Path]) -> list[dict[str, str]]:
    """Cases that ran. Raises ValueError for a file without what is printed here."""
    found = []
    for directory in directories:
        with (directory / "rows.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if rows and "comm_share" not in rows[0]:
            raise ValueError(f"{directory / 'rows.csv'}: found no column comm_share, expected rows of an orrery-gpu that has it")
        found += [row for row in rows if row["ours_us"]]
    return found


def design(row: Mapping[str, str]) -> str:
    """As the case says it, without what goes without saying."""
    words = [row["design"], row["mode"]]
    if row["design"] == "persistent":
        return words[0]
    if row["comm"] and row["comm"] != row["mode"]:
        words.append(row["comm"])
    if int(row["chunks"]) > 1:
        words.append(f"{row['chunks']} chunks")
    if int(row["streams"]) > 1:
        words.append(f"{row['streams']} streams")
    words += [name for name in ("fuse", "gather") if row[name] == "1"]
    return ", ".join(words)


def cells(row: Mapping[str, str]) -> list[str]:
    """Of HEADER."""
    inside = row["design"] == "persistent" and int(row["gpus"]) > 1
    shown = row["load"] + (" by bias" if row.get("impose") == "bias" else "")
    share = f"{100 * float(row['comm_share']):.0f} %" if row["comm_share"] else ""
    us = {name: f"{float(row[name]):,.0f}" if row[name] else "" for name in ("ours_us", "comm_us", "exposed_us")}
    return [
        row["model"], f"{int(row['tokens']) // int(row['dp']):,}", row["gpus"], row["dtype"], shown, design(row), row["launches"],
        row["host_syncs"], us["ours_us"], "inside" if inside else us["comm_us"], share, us["exposed_us"],
    ]  # fmt: skip


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """In Markdown; layers in the order in which they come first."""
    layers: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        line = cells(row)
        layers.setdefault(tuple(line[:5]), []).append(line)
    lines = [HEADER, ("---",) * len(HEADER), *(line for of_layer in layers.values() for line in of_layer)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="moe_launches.py", description=__doc__.split("\n")[0])
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="of orrery-gpu moe")
    try:
        print(table(read(parser.parse_args(arguments).directories)))
    except (OSError, ValueError) as error:
        print(f"moe_launches.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
