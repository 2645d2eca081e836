"""Compares our kernels with PyTorch's on the GPU here: python3 kernels/compare/compare.py BUILD/kernels/compare/liborrery_compare.so [FAMILY…]."""

from __future__ import annotations

import sys
from pathlib import Path

import elementwise
import torch
from harness import Library, run

FAMILIES = {"elementwise": elementwise}


def main(arguments: list[str]) -> int:
    """Runs the named families, or all."""
    library = Library(Path(arguments[0]).resolve())
    torch.manual_seed(1)
    for name in arguments[1:] or FAMILIES:
        run(FAMILIES[name].comparisons(library))
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
