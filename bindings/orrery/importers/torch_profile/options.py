"""The options of `orrery import torch-profile`."""

from __future__ import annotations

import argparse
import pathlib

from ...arguments import whole_number


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        type=pathlib.Path,
        nargs="+",
        metavar="TRACE",
        help="torch.profiler's Chrome traces (.json, .json.gz) or Nsight Systems' SQLite export; several ranks or files of one engine",
    )
    parser.add_argument("--engine", required=True, metavar="NAME", help="what to call it: the provider and the engine profile get this name")
    parser.add_argument("--model", required=True, metavar="CONFIG", help="name of a model, or its config.json")
    parser.add_argument("--machine", metavar="M", help="machine of the trace (as the trace names its GPU)")
    parser.add_argument("--tp", type=whole_number(1, 1 << 20), default=1, metavar="N", help="tensor-parallel ranks (1)")
    parser.add_argument("--ep", type=whole_number(1, 1 << 20), default=1, metavar="N", help="expert-parallel ranks (1)")
    parser.add_argument("--weights", default="", metavar="DTYPE", help="bf16, fp8, ... (as the config says)")
    parser.add_argument("--kv-cache", default="", metavar="DTYPE", help="bf16 or fp8 (as the config says)")
    parser.add_argument("--profile", metavar="NAME", help="engine profile that has what a trace does not show (that of the engine's name)")
    parser.add_argument(
        "--requests", type=pathlib.Path, nargs="+", metavar="BENCH.json", help="what orrery profile load wrote while the engine was traced: contexts"
    )
    parser.add_argument(
        "--context", type=whole_number(1, 1 << 30), metavar="N", help="tokens of each decode, where neither annotations nor requests say"
    )
    parser.add_argument("--batch", metavar="BATCH", help="what every step computed: 'prefill=512+0 decode=8@8192'")
    parser.add_argument(
        "--attention",
        choices=("split", "packed"),
        help="packed: one call has the queries and keys of all sequences of a step, with a mask (as recorded shapes say, else split)",
    )
    parser.add_argument("--timings", type=pathlib.Path, metavar="STEPS.csv", help="steps of the same engine without a profiler, for the host's times")
    parser.add_argument(
        "--served", type=pathlib.Path, metavar="STEPS.csv", help="steps of a load on the same engine, likewise: what serving adds to a step"
    )
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("learned"), metavar="DIR", help="where to write (learned)")
    parser.add_argument("--force", action="store_true", help="replace what an earlier import wrote")
