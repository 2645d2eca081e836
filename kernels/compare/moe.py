"""Compares kernels and layers of mixtures of experts with PyTorch's on the GPU here and keeps the rows in docs/kernels.

python3 kernels/compare/moe.py [--library PATH] [-o DIR] [FAMILY…]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from compare import LIBRARY, ROOT, measure, revision
from moe_report import render
from report import load, merge, save

STEM = "moe_h200"
ORIGINAL = ROOT / "docs/kernels/moe_original.json"


def main(arguments: list[str]) -> int:
    """Measures, merges with what is there, and renders the page."""
    parser = argparse.ArgumentParser(prog="moe.py", description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="families to measure again (default: all)")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="liborrery_compare.so of a build with preset gpu")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/kernels", help="directory of moe_h200.json and moe.md")
    parser.add_argument("--revision", default=None, help="commit the library was built from (default: git's)")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="rows measured elsewhere, in the form of moe_h200.json")
    parser.add_argument("--render", action="store_true", help="measure nothing; render the rows there are")
    parser.add_argument("--rows-only", action="store_true", help="measure, but render nothing (which needs matplotlib)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{STEM}.json"
    rows = load(path)
    for other in options.merge:
        rows = merge(rows, load(other))
    save(path, rows)
    if not options.render:
        for measured in measure(options.library, options.families, options.revision or revision(), registry="moe_families"):
            rows = merge(rows, measured)
            save(path, rows)
    if not options.rows_only:
        render(load(path), load(ORIGINAL), STEM, options.output / "moe.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
