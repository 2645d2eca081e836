#!/usr/bin/env python3
"""Writes the tables of experts spread over nodes as SGLang runs them: DeepGEMM behind DeepEP's two modes.

    docs/tools/deepep_tables.py AICONFIGURATOR_H100 AICONFIGURATOR_H200 TOPOLOGIES

The first two hold AIConfigurator's op tables (wideep_*_moe_sglang_0.5.10.csv, deepep_normal_sglang_0.5.6.post2.csv,
deepep_low_latency_sglang_0.5.12.csv). Experts go to devices/h200-sxm, where they were timed, rows of DeepEP to
devices/h100-sxm, by mode: sglang-0.5.10-deepep-normal (prompts), sglang-0.5.10-deepep-low-latency (decodes).
"""

from __future__ import annotations

import csv
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping

GPUS_PER_NODE = 8
SMS = "20"  # deep_ep.Buffer.num_sms, the default
SHAPE = {"hidden_size": "7168", "num_topk": "8", "num_experts": "256"}
MODES = {"normal": "context", "low-latency": "generation"}
# docs/legacy.md of deepseek-ai/DeepEP at dd758ca: 128 tokens, hidden 7168, top-8, FP8 dispatch and BF16 combine, H800
# with 400 Gbit/s InfiniBand: GPUs, dispatch and combine in microseconds. The row of 8 GPUs is of an older version than
# AIConfigurator's, which takes its place.
REPORTED = ((16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360))
NOTICE = """Tables in this directory were made from AIConfigurator (https://github.com/ai-dynamo/aiconfigurator), Apache-2.0,
Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved. What was changed: docs/tools/deepep_tables.py.
SPDX-License-Identifier: Apache-2.0 (full text: topologies/LICENSE-APACHE-2.0)
"""

Row = Mapping[str, str]


def rows_of(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def experts(path: pathlib.Path) -> Iterator[tuple[object, ...]]:
    """dtype, distribution, tokens of all GPUs, the shape of a GPU, time."""
    for row in rows_of(path):
        tp, ep, total = (int(row[name]) for name in ("moe_tp_size", "moe_ep_size", "num_experts"))
        yield (row["moe_dtype"], row["distribution"], int(row["num_tokens"]), int(row["hidden_size"]),
               int(row["inter_size"]) // tp, int(row["topk"]), total // ep, total,
               round(1e3 * float(row["latency"]), 3), 0)  # fmt: skip


def normal(path: pathlib.Path, part: str) -> Iterator[tuple[object, ...]]:
    for row in rows_of(path):
        if row["dispatch_sms"] == SMS and all(row[name] == value for name, value in SHAPE.items()):
            time = float(row[f"{part}_transmit_us"]) + float(row[f"{part}_notify_us"])
            yield exchange(part, int(row["num_token"]), int(row["node_num"]) * GPUS_PER_NODE, 0, time, 0)


def low_latency(path: pathlib.Path, part: str) -> Iterator[tuple[object, ...]]:
    for row in rows_of(path):
        if all(row[name] == value for name, value in SHAPE.items()):
            yield exchange(part, int(row["num_token"]), GPUS_PER_NODE, 1, float(row[f"{part}_avg_t_us"]), 0)
    for ranks, *times in REPORTED:
        yield exchange(part, 128, ranks, 1, times[part == "combine"], 1)


def exchange(part: str, tokens: int, ranks: int, mode: int, time: float, source: int) -> tuple[object, ...]:
    dtype = "fp8_block" if part == "dispatch" else "bf16"
    return (dtype, tokens, int(SHAPE["hidden_size"]), int(SHAPE["num_topk"]), ranks, mode, round(time, 3), source)


def write(path: pathlib.Path, header: str, rows: Iterable[tuple[object, ...]]) -> int:
    found = sorted(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(found)
    return len(found)


def meta(directory: pathlib.Path, device: str, tables: Mapping[str, tuple[int, str, tuple[str, ...], str]]) -> None:
    text = [
        f"provider: {directory.name}", f"device: {device}", "engine: sglang", 'engine_version: "0.5.10"',
        'units: "time_us: microseconds of one call; sizes: elements, tokens, GPUs"',
        "source_repository: https://github.com/ai-dynamo/aiconfigurator",
        "licence: Apache-2.0  # full text: topologies/LICENSE-APACHE-2.0",
        'copyright: "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."', "tables:",
    ]  # fmt: skip
    for name, (count, file, sources, note) in tables.items():
        text += [f"  {name}:", f"    rows: {count}", f'    from: ["{file}"]', "    sources:  # meaning of the column `source`"]
        text += [f'      {number}: "{source}"' for number, source in enumerate(sources)]
        text += ["    notes:", f'      - "{note}"']
    (directory / "meta.yaml").write_text("\n".join(text) + "\n", encoding="utf-8")
    (directory / "NOTICE").write_text(NOTICE, encoding="utf-8")


def main(h100: pathlib.Path, h200: pathlib.Path, topologies: pathlib.Path) -> None:
    for mode, phase in MODES.items():
        name = f"sglang-0.5.10-deepep-{mode}"
        directory = topologies / "devices" / "h200-sxm" / name
        file = f"wideep_{phase}_moe_sglang_0.5.10.csv"
        count = write(directory / "moe.csv", "dtype,distribution,tokens,hidden,inter,topk,experts,experts_total,time_us,source",
                      experts(h200 / file))  # fmt: skip
        note = "tokens are all tokens routed over the expert group; rows behind dispatch and before combine, which are apart"
        meta(directory, "h200-sxm", {"moe": (count, file, (f"deepepmoe, {phase}: DeepGEMM",), note)})
        directory = topologies / "devices" / "h100-sxm" / name
        reader, file = (normal, "deepep_normal_sglang_0.5.6.post2.csv") if mode == "normal" else (low_latency, "deepep_low_latency_sglang_0.5.12.csv")  # fmt: skip
        sources = ("deepep", "docs/legacy.md of deepseek-ai/DeepEP at dd758ca, H800")[: 1 + (mode != "normal")]
        note = f"one node is 8 GPUs; {SMS} SMs" if mode == "normal" else "rows of several nodes are of 128 tokens alone"
        tables = {}
        for part in ("dispatch", "combine"):
            count = write(directory / f"deepep_{part}.csv", "dtype,tokens,hidden,topk,ranks,low_latency,time_us,source",
                          reader(h100 / file, part))  # fmt: skip
            tables[f"deepep_{part}"] = (count, file, sources, note)
        meta(directory, "h100-sxm", tables)


if __name__ == "__main__":
    main(*(pathlib.Path(argument) for argument in sys.argv[1:4]))
