"""Options of `orrery scorecard`; imports nothing that takes time."""

from __future__ import annotations

import argparse
import pathlib

from ..arguments import whole_number
from ..simulation import MOST_THREADS


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=pathlib.Path, metavar="FILE.csv", help="cases (data/serving/published_serving.csv)")
    parser.add_argument("--filter", action="append", default=[], metavar="KEY=VALUE", dest="filters",
                        help="only cases whose column KEY is VALUE; may be given several times")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print every case and table as JSON")
    parser.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a page with scatter plots and tables")
    parser.add_argument("--force", action="store_true", help="replace what is in the way of --html, whatever it is")
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="cases side by side (number of cores)")
