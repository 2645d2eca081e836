"""Compares our kernels with PyTorch's on the GPU here and keeps the rows in docs/kernels.

python3 kernels/compare/compare.py [--library PATH] [-o DIR] [FAMILY…]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from report import Row, load, merge, render, save

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build-gpu/kernels/compare/liborrery_compare.so"


def revision() -> str:
    """The commit that the kernels were built from, with a mark where the tree differs from it."""
    described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=10"], cwd=ROOT, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def measure(library: Path, families: list[str], revision_name: str, registry: str = "families") -> Iterator[list[Row]]:
    """The rows of each shape in turn, one per peer, of the families that the module `registry` lists."""
    import torch
    from harness import Library, run

    known: dict[str, ModuleType] = importlib.import_module(registry).FAMILIES
    unknown = set(families) - set(known)
    if unknown:
        raise SystemExit(f"unknown family {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    torch.manual_seed(1)
    ours = Library(library.resolve())
    date = datetime.date.today().isoformat()
    for name in families or known:
        for result in run(known[name].comparisons(ours)):
            yield result.rows(revision=revision_name, date=date)
        torch.cuda.empty_cache()


def main(arguments: list[str]) -> int:
    """Measures, merges with what is there, and renders the page."""
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="families to measure again (default: all)")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="liborrery_compare.so of a build with preset gpu")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/kernels", help="directory of h200.json and h200.md")
    parser.add_argument("--revision", default=None, help="commit the library was built from (default: git's)")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="rows measured elsewhere, in the form of h200.json")
    parser.add_argument("--render", action="store_true", help="measure nothing; render the rows there are")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "h200.json"
    rows = load(path)
    for other in options.merge:
        rows = merge(rows, load(other))
    save(path, rows)
    if not options.render:
        for measured in measure(options.library, options.families, options.revision or revision()):
            rows = merge(rows, measured)
            save(path, rows)
    render(rows, path.with_suffix(".md"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
