"""Turn AIConfigurator's measured op tables into provider and collective tables.

    python -m orrery.importers.aiconfigurator SRC_DIR DEST_TOPOLOGIES \\
        --engine vllm --version 0.24.0 --device h200-sxm --machine hgx-h200

SRC_DIR holds `<op>_<engine>_<version>.csv[.gz]` and `nccl_<version>.csv[.gz]` as published by
ai-dynamo/aiconfigurator (Apache-2.0). Written are
`DEST_TOPOLOGIES/devices/<device>/<engine>-<version>/{<kernel>.csv, meta.yaml, NOTICE}` and
`DEST_TOPOLOGIES/<machine>/{<collective>.csv, meta.yaml, NOTICE}`. Formats: docs/data.md.
Standard library only; the same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE_REPOSITORY = "https://github.com/ai-dynamo/aiconfigurator"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
LICENSE_NAME = "Apache-2.0"

# AIConfigurator's format names and ours (sim/plan/plan.h, DType).
DTYPES = {
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "int8": "int8",
}

# Dims of the one model whose attention modules were timed (deepseek-ai/DeepSeek-V3 config.json).
DEEPSEEK_V3 = {
    "hidden": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

ORDER = "rows are sorted by their columns"


class TableError(ValueError):
    """A source table that is not what this importer understands; says which file and line."""


# Rows of vLLM's block-scaled linear layer were timed without a CUDA graph, so small ones show the
# host's floor and not the GPU's time. The floor is the plateau over all rows whose per-tensor fp8
# twin takes < 15 us (median 57, 88 and 177 us; 99 % of them lie below these limits, microseconds).
HOST_FLOORS_US = {
    "FlashInferFp8BlockScaledMMKernel": 75.0,
    "DeepGemmFp8BlockScaledMMKernel": 110.0,
    "CutlassFp8BlockScaledMMKernel": 220.0,
}
# A row at the floor still is the GPU's time when the fp8 twin needs nearly as long.
HOST_BOUND_BELOW = 0.85
# A row above the floor whose twin is below it shows a hiccup of the host when it takes so many times
# the twin; where the host does not show, the ratio is 0.75 to 1.28 (5 to 95 %).
HOST_HICCUP_ABOVE = 1.5


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """How one source table becomes one of our kernels."""

    op: str  # file name up to "_<engine>_<version>"
    name: str  # our kernel
    dims: tuple[str, ...]
    row: Callable[[dict[str, str]], tuple[tuple[int, ...], str]]  # dims and dtype
    extra: tuple[str, ...] = ()  # further columns copied as they are
    flags_host_bound: bool = False  # write the column host_bound
    notes: tuple[str, ...] = ()


@dataclass
class Written:
    """What was written for one kernel or collective."""

    rows: int = 0
    sources: list[str] = field(default_factory=list)  # kernel_source by code
    files: list[str] = field(default_factory=list)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise TableError(f"dtype '{text}'; expected one of {', '.join(DTYPES)}")
    return DTYPES[text]


def _int(row: dict[str, str], *names: str) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in names)


def _gemm(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    return _int(row, "m", "n", "k"), _dtype(row["gemm_dtype"])


def _attention_prefill(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    batch, query, context, heads, kv_heads, head_dim, window = _int(
        row, "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    return (batch, query, context, heads, kv_heads, head_dim, window), _dtype(row["kv_cache_dtype"])


def _attention_decode(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    batch, heads, kv_heads, head_dim, window = _int(
        row, "batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    # One new token (isl 1) after `step` cached ones.
    context = int(row["isl"]) + int(row["step"])
    return (batch, context, heads, kv_heads, head_dim, window), _dtype(row["kv_cache_dtype"])


_KV_BITS = {"bfloat16": 16, "fp8": 8}
_MODULE_DIMS = tuple(DEEPSEEK_V3)


def _mla_prefill_module(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    dims = _int(row, "batch_size", "isl", "step", "num_heads") + tuple(DEEPSEEK_V3.values())
    return (*dims, _KV_BITS[row["kv_cache_dtype"]]), _dtype(row["gemm_type"])


def _mla_decode_module(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    # The module tables give the whole sequence, the new token included, as `step`.
    dims = _int(row, "batch_size", "step", "num_heads") + tuple(DEEPSEEK_V3.values())
    return (*dims, _KV_BITS[row["kv_cache_dtype"]]), _dtype(row["gemm_type"])


def _mla_prefill(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    batch, query, context, heads = _int(row, "batch_size", "isl", "step", "num_heads")
    qk = DEEPSEEK_V3["qk_nope_head_dim"] + DEEPSEEK_V3["qk_rope_head_dim"]
    dims = (batch, query, context, heads, qk, DEEPSEEK_V3["v_head_dim"])
    return dims, _dtype(row["kv_cache_dtype"])


def _mla_decode(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    batch, heads = _int(row, "batch_size", "num_heads")
    context = int(row["isl"]) + int(row["step"])
    rank, rope = DEEPSEEK_V3["kv_lora_rank"], DEEPSEEK_V3["qk_rope_head_dim"]
    return (batch, context, heads, rank, rope), _dtype(row["kv_cache_dtype"])


def _mla_bmm(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    tokens, heads = _int(row, "num_tokens", "num_heads")
    rank = DEEPSEEK_V3["kv_lora_rank"]
    # Before attention q_nope [tokens, 128] x W_UK [128, 512] per head, after it [tokens, 512] x
    # W_UV [512, 128]. The fp8 variant is block scaled.
    if row["op_name"] == "mla_gen_pre":
        n, k = rank, DEEPSEEK_V3["qk_nope_head_dim"]
    elif row["op_name"] == "mla_gen_post":
        n, k = DEEPSEEK_V3["v_head_dim"], rank
    else:
        raise TableError(f"op_name '{row['op_name']}'; expected mla_gen_pre or mla_gen_post")
    dtype = "fp8_block" if row["bmm_dtype"] == "fp8" else _dtype(row["bmm_dtype"])
    return (heads, tokens, n, k), dtype


def _moe(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    tokens, hidden, inter, topk, experts = _int(
        row, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"
    )
    tp, ep = _int(row, "moe_tp_size", "moe_ep_size")
    # The timed rank is rank 0, which holds one expert more when experts do not divide evenly.
    local = experts // ep + (1 if experts % ep else 0)
    return (tokens, hidden, inter // tp, topk, local, experts), _dtype(row["moe_dtype"])


def _quantize(row: dict[str, str]) -> tuple[tuple[int, ...], str]:
    return _int(row, "m", "k"), _dtype(row["quant_dtype"])


KERNELS = (
    Kernel(
        op="gemm",
        name="gemm",
        dims=("m", "n", "k"),
        row=_gemm,
        flags_host_bound=True,
        notes=(
            "fp8: one linear layer with static per-tensor activation scale; the time includes quantising x from bf16",
            "fp8_block: includes per-token-group quantising of x; timed without a CUDA graph on one set of weights,"
            " so rows with small m hold host time (host_bound 1) and rows with small weights are served from L2",
            "host_bound 1: the row is at the host's floor, or beyond it by a hiccup, and well above its fp8 twin, so it"
            " is no GPU time",
            "bf16 and fp8: CUDA graph over six layers with their own weights",
        ),
    ),
    Kernel(
        op="context_attention",
        name="attention_prefill",
        dims=("batch", "query", "context", "heads", "kv_heads", "head_dim", "window"),
        row=_attention_prefill,
        notes=("dtype is the KV cache format; arithmetic is bf16", "window 0 means full attention"),
    ),
    Kernel(
        op="generation_attention",
        name="attention_decode",
        dims=("batch", "context", "heads", "kv_heads", "head_dim", "window"),
        row=_attention_decode,
        notes=(
            "dtype is the KV cache format; arithmetic is bf16",
            "window 0 means full attention",
            "context counts the new token",
        ),
    ),
    Kernel(
        op="mla_context_module",
        name="mla_prefill_module",
        dims=("batch", "query", "context", "heads", *_MODULE_DIMS, "kv_bits"),
        row=_mla_prefill_module,
        notes=("the whole attention block of one DeepSeek-V3 layer; heads are those of one rank",),
    ),
    Kernel(
        op="mla_generation_module",
        name="mla_decode_module",
        dims=("batch", "context", "heads", *_MODULE_DIMS, "kv_bits"),
        row=_mla_decode_module,
        notes=("the whole attention block of one DeepSeek-V3 layer; heads are those of one rank",),
    ),
    Kernel(
        op="mla_context",
        name="mla_prefill",
        dims=("batch", "query", "context", "heads", "qk_head_dim", "v_head_dim"),
        row=_mla_prefill,
        notes=("dtype is the KV cache format; heads are those of one rank",),
    ),
    Kernel(
        op="mla_generation",
        name="mla_decode",
        dims=("batch", "context", "heads", "kv_lora_rank", "rope_dim"),
        row=_mla_decode,
        notes=("dtype is the KV cache format; heads are those of one rank",),
    ),
    Kernel(
        op="mla_bmm",
        name="batched_gemm",
        dims=("batch", "m", "n", "k"),
        row=_mla_bmm,
        notes=("products of the absorbed MLA form with W_UK (n 512, k 128) and W_UV (n 128, k 512)",),
    ),
    Kernel(
        op="moe",
        name="moe",
        dims=("tokens", "hidden", "inter", "topk", "experts", "experts_total"),
        row=_moe,
        extra=("distribution",),
        notes=(
            "tokens are all tokens routed over the expert group; inter and experts are those of one rank",
            "power_law rows time one rank (rank 0), not the slowest",
            "balanced rows with experts < experts_total are slower than power_law rows, since the routing of"
            " the benchmark is balanced over tokens and not over ranks",
        ),
    ),
    Kernel(
        op="quantize_computescale",
        name="quantize",
        dims=("tokens", "hidden"),
        row=_quantize,
        notes=(
            "dynamic per-token minus static fp8 quantisation: what a dynamic scale adds to a gemm fp8 row,"
            " which holds the static quantisation already",
        ),
    ),
)

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

# Backends of the custom all-reduce tables: our implementation name and launch mode.
CUSTOM_MODES = {"graph": "graph", "eager": "eager"}


def _number(milliseconds: str) -> str:
    """Microseconds with six significant digits from milliseconds in text."""
    return f"{float(milliseconds) * 1e3:.6g}"


def _find(directory: Path, stem: str) -> Path | None:
    for suffix in (".csv", ".csv.gz"):
        path = directory / (stem + suffix)
        if path.exists():
            return path
    return None


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of a CSV file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as handle:
        for line, row in enumerate(csv.DictReader(handle), start=2):
            yield line, row


def _write_csv(path: Path, header: tuple[str, ...], rows: list[tuple]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _with_host_bound(rows: list[tuple], codes: dict[str, int]) -> list[tuple]:
    """Put 1 before the source code of each fp8_block row that shows the host's floor, else 0."""
    fp8 = {row[1:-2]: float(row[-2]) for row in rows if row[0] == "fp8"}
    floors = {codes[name]: floor for name, floor in HOST_FLOORS_US.items() if name in codes}
    flagged = []
    for *head, time, code in rows:
        twin = fp8.get(tuple(head[1:]))
        floor = floors.get(code, 0.0)
        host_bound = (
            head[0] == "fp8_block"
            and twin is not None
            and twin < min(floor, HOST_BOUND_BELOW * float(time))
            and (float(time) < floor or float(time) > HOST_HICCUP_ABOVE * twin)
        )
        flagged.append((*head, time, int(host_bound), code))
    return flagged


def import_kernel(kernel: Kernel, source: Path, destination: Path) -> Written:
    """Write one kernel's CSV; throw TableError with file and line on a row that does not fit."""
    written = Written(files=[source.name])
    rows = []
    codes: dict[str, int] = {}
    for line, row in read_rows(source):
        try:
            dims, dtype = kernel.row(row)
            time = _number(row["latency"])
            if float(time) <= 0:
                raise TableError(f"latency {row['latency']}; expected more than 0")
            code = codes.setdefault(row["kernel_source"], len(codes))
            extra = tuple(row[name] for name in kernel.extra)
        except (KeyError, ValueError) as error:
            raise TableError(f"{source}:{line}: {error}") from error
        rows.append((dtype, *extra, *dims, time, code))
    if kernel.flags_host_bound:
        rows = _with_host_bound(rows, codes)
    # Codes by name, not by first appearance, so that the order of the source does not matter.
    names = sorted(codes)
    rank = {codes[name]: place for place, name in enumerate(names)}
    rows = sorted((*row[:-1], rank[row[-1]]) for row in rows)
    flag = ("host_bound",) if kernel.flags_host_bound else ()
    header = ("dtype", *kernel.extra, *kernel.dims, "time_us", *flag, "source")
    _write_csv(destination / f"{kernel.name}.csv", header, rows)
    written.rows = len(rows)
    written.sources = names
    return written


def _yaml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_meta(path: Path, head: list[str], tables: dict[str, tuple[Written, tuple[str, ...]]]) -> None:
    lines = [*head, "tables:"]
    for name, (written, notes) in tables.items():
        lines.append(f"  {name}:")
        lines.append(f"    rows: {written.rows}")
        lines.append("    from: [" + ", ".join(_yaml_text(name_) for name_ in written.files) + "]")
        if written.sources:
            lines.append("    sources:  # meaning of the column `source`")
            lines += [f"      {code}: {_yaml_text(text)}" for code, text in enumerate(written.sources)]
        if notes:
            lines.append("    notes:")
            lines += [f"      - {_yaml_text(note)}" for note in notes]
    path.write_text("\n".join(lines) + "\n")


def _notice(version: str) -> str:
    return (
        "The tables in this directory come from AIConfigurator's measured op database\n"
        f"({SOURCE_REPOSITORY}), {version}.\n"
        f"{COPYRIGHT}\n"
        "SPDX-License-Identifier: Apache-2.0 (full text: topologies/LICENSE-APACHE-2.0).\n"
        "Changed: columns renamed, units converted, rows sorted; no measured value was altered\n"
        "beyond rounding to six significant digits.\n"
    )


def import_provider(
    source: Path,
    destination: Path,
    *,
    engine: str,
    version: str,
    device: str,
    kernels: list[str] | None = None,
) -> dict[str, Written]:
    """Import the op tables of one engine version; return what was written by kernel name."""
    directory = destination / "devices" / device / f"{engine}-{version}"
    tables: dict[str, tuple[Written, tuple[str, ...]]] = {}
    for kernel in KERNELS:
        if kernels is not None and kernel.name not in kernels:
            continue
        path = _find(source, f"{kernel.op}_{engine}_{version}")
        if path is not None:
            tables[kernel.name] = (import_kernel(kernel, path, directory), kernel.notes)
    if not tables:
        raise TableError(f"no table of {engine} {version} in {source}; expected e.g. gemm_{engine}_{version}.csv.gz")
    head = [
        f"provider: {engine}-{version}",
        f"device: {device}",
        f"engine: {engine}",
        f"engine_version: {_yaml_text(version)}",
        f"source_repository: {SOURCE_REPOSITORY}",
        f"licence: {LICENSE_NAME}  # full text: topologies/LICENSE-APACHE-2.0",
        f"copyright: {_yaml_text(COPYRIGHT)}",
        'units: "time_us: microseconds of one call; sizes: elements, tokens, heads"',
        f"order: {_yaml_text(ORDER)}",
    ]
    _write_meta(directory / "meta.yaml", head, tables)
    (directory / "NOTICE").write_text(_notice(f"{engine} {version} on {device}"))
    return {name: written for name, (written, _) in tables.items()}


def _collective_rows(source: Path) -> Iterator[tuple[str, tuple, str]]:
    """Yield (collective, row, file) of every NCCL and custom all-reduce table in `source`."""
    bytes_per_element = {"half": 2, "int8": 1, "bfloat16": 2, "float16": 2}
    for path in sorted(source.glob("nccl_*.csv*")):
        for line, row in read_rows(path):
            try:
                collective = COLLECTIVES[row["op_name"]]
                size = int(row["message_size"]) * bytes_per_element[row["nccl_dtype"]]
                yield (
                    collective,
                    ("nccl", row["version"], "unspecified", _dtype(row["nccl_dtype"]), int(row["num_gpus"]), size,
                     _number(row["latency"])),
                    path.name,
                )
            except (KeyError, ValueError) as error:
                raise TableError(f"{path}:{line}: {error}") from error
    for path in sorted(source.glob("custom_allreduce_*vllm_*.csv*")):
        for line, row in read_rows(path):
            try:
                mode = CUSTOM_MODES[row["backend"].rsplit("_", 1)[1]]
                dtype = row["allreduce_dtype"]
                size = int(row["message_size"]) * bytes_per_element[dtype]
                yield (
                    "all_reduce",
                    ("custom", f"vllm-{row['version']}", mode, _dtype(dtype), int(row["num_gpus"]), size,
                     _number(row["latency"])),
                    path.name,
                )
            except (KeyError, IndexError, ValueError) as error:
                raise TableError(f"{path}:{line}: {error}") from error


def import_collectives(source: Path, destination: Path, *, machine: str) -> dict[str, Written]:
    """Import NCCL and custom all-reduce tables; return what was written by collective."""
    directory = destination / machine
    rows: dict[str, list[tuple]] = {}
    written: dict[str, Written] = {}
    for collective, row, file in _collective_rows(source):
        rows.setdefault(collective, []).append(row)
        entry = written.setdefault(collective, Written())
        entry.rows += 1
        if file not in entry.files:
            entry.files.append(file)
    if not rows:
        raise TableError(f"no collective table in {source}; expected nccl_<version>.csv or custom_allreduce_*")
    header = ("implementation", "version", "mode", "dtype", "num_gpus", "bytes", "time_us")
    for collective in sorted(rows):
        _write_csv(directory / f"{collective}.csv", header,
                   sorted(rows[collective], key=lambda row: (*row[:-1], float(row[-1]))))
    head = [
        f"machine: {machine}",
        f"source_repository: {SOURCE_REPOSITORY}",
        f"licence: {LICENSE_NAME}  # full text: topologies/LICENSE-APACHE-2.0",
        f"copyright: {_yaml_text(COPYRIGHT)}",
        'units: "bytes: the whole buffer as nccl-tests prints it (all_gather: gathered output; reduce_scatter:'
        ' full input; all_to_all: all that one rank sends, its own share included); time_us: microseconds"',
        "notes:",
        '  - "nccl: nccl-tests, calls queued on a stream (not a CUDA graph), hence mode unspecified; version is what'
        ' the rows say, whatever the name of the source file"',
        '  - "custom graph: calls replayed from a CUDA graph; custom eager: calls from Python, floor about 20 us"',
        '  - "custom: whatever vLLM dispatches to at that size, so above its size limit it is NCCL again"',
        '  - "rows that repeat a point are repeats of the measurement; readers take the median"',
    ]
    _write_meta(directory / "meta.yaml", head, {name: (written[name], ()) for name in sorted(written)})
    (directory / "NOTICE").write_text(_notice(f"collectives on {machine}"))
    return written


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status (2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m orrery.importers.aiconfigurator", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="directory with AIConfigurator's CSV files")
    parser.add_argument("destination", type=Path, help="topologies directory to write into")
    parser.add_argument("--engine", default="vllm", help="vllm, sglang or trtllm")
    parser.add_argument("--version", default="0.24.0", help="engine version as in the file names")
    parser.add_argument("--device", default="h200-sxm", help="device directory under topologies/devices")
    parser.add_argument("--machine", help="machine directory for collective tables; left out: none are imported")
    parser.add_argument("--kernels", nargs="+", help="only these kernels")
    options = parser.parse_args(arguments)
    try:
        if not options.source.is_dir():
            raise TableError(f"{options.source} is not a directory")
        known = [kernel.name for kernel in KERNELS]
        for name in options.kernels or []:
            if name not in known:
                raise TableError(f"kernel '{name}'; expected one of {', '.join(known)}")
        written = import_provider(options.source, options.destination, engine=options.engine, version=options.version,
                                  device=options.device, kernels=options.kernels)
        if options.machine:
            written |= import_collectives(options.source, options.destination, machine=options.machine)
    except TableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, entry in written.items():
        print(f"{name}: {entry.rows} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
