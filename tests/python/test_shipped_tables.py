"""The tables under topologies/: row counts, units, licences, and that they are the importer's output."""

import csv
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGIES = ROOT / "topologies"
SOURCES = ROOT.parent / "shared" / "data" / "kernels"

# directory, kernel or collective, rows
SHIPPED = [
    ("devices/h200-sxm/vllm-0.24.0", "gemm", 107225),
    ("devices/h200-sxm/vllm-0.24.0", "attention_prefill", 50830),
    ("devices/h200-sxm/vllm-0.24.0", "attention_decode", 62166),
    ("devices/h200-sxm/vllm-0.24.0", "mla_prefill_module", 3886),
    ("devices/h200-sxm/vllm-0.24.0", "mla_decode_module", 5888),
    ("devices/h200-sxm/vllm-0.24.0", "moe", 48762 - 3321 - 12150),
    ("devices/h200-sxm/vllm-0.24.0", "quantize", 1628),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "gemm", 100668),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "attention_prefill", 75837 - 25198),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "attention_decode", 52033),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_prefill_module", 3869),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_decode_module", 5888),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_prefill", 1760),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_decode", 2896),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "batched_gemm", 848),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "moe", 126522 - 49086 - 14499),
    ("devices/h200-sxm/sglang-0.5.14", "gemm", 101010),
    ("devices/h200-sxm/sglang-0.5.14", "attention_prefill", 35090 - 1156),
    ("devices/h200-sxm/sglang-0.5.14", "attention_decode", 40468),
    ("devices/h200-sxm/sglang-0.5.14", "moe", 48602),
    ("devices/h100-sxm/vllm-0.24.0", "gemm", 107188),
    ("devices/h100-sxm/vllm-0.24.0", "attention_prefill", 50830),
    ("devices/h100-sxm/vllm-0.24.0", "attention_decode", 62166),
    ("devices/h100-sxm/vllm-0.24.0", "moe", 49862 - 3321 - 13284),
    # 4 numbers of nodes by 23 of tokens; 11 of tokens in a node and DeepEP's own 5 between nodes.
    ("devices/h100-sxm/sglang-0.5.10-deepep-normal", "deepep_dispatch", 4 * 23),
    ("devices/h100-sxm/sglang-0.5.10-deepep-normal", "deepep_combine", 4 * 23),
    ("devices/h100-sxm/sglang-0.5.10-deepep-low-latency", "deepep_dispatch", 11 + 5),
    ("devices/h100-sxm/sglang-0.5.10-deepep-low-latency", "deepep_combine", 11 + 5),
    ("devices/h200-sxm/sglang-0.5.10-deepep-normal", "moe", 462),
    ("devices/h200-sxm/sglang-0.5.10-deepep-low-latency", "moe", 336),
    ("hgx-h200", "all_reduce", 516 + 138 + 69),
    ("hgx-h200", "all_gather", 378),
    ("hgx-h200", "reduce_scatter", 378),
    ("hgx-h200", "all_to_all", 378),
    ("hgx-h100", "all_reduce", 516),
]

# A row of the source in milliseconds, as published, and where it must be found in microseconds.
KNOWN_ROWS = [
    ("devices/h200-sxm/trtllm-1.3.0rc20/gemm", {"dtype": "bf16", "m": "4353", "n": "65536", "k": "51200"}, "41099.6"),
    ("devices/h200-sxm/sglang-0.5.14/gemm", {"dtype": "fp8", "m": "4096", "n": "65536", "k": "3072"}, "1481.6"),
    ("hgx-h200/all_reduce", {"implementation": "custom_trtllm", "num_gpus": "2", "bytes": "256"}, "2.63712"),
]


@cache
def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize(("directory", "kernel", "rows"), SHIPPED)
def test_shipped_tables_have_every_row_that_is_not_left_out(directory: str, kernel: str, rows: int) -> None:
    with (TOPOLOGIES / directory / f"{kernel}.csv").open() as handle:
        assert sum(1 for _ in handle) - 1 == rows
    assert f"  {kernel}:\n    rows: {rows}\n" in (TOPOLOGIES / directory / "meta.yaml").read_text()


def measured_tables() -> list[Path]:
    """Tables of kernels; includes.csv and backends.csv beside them are written by hand."""
    return [path for path in TOPOLOGIES.glob("devices/*/*/*.csv") if path.stem not in ("includes", "backends")]


def is_own(path: Path) -> bool:
    """Whether `orrery calibrate` wrote the table."""
    return path.parent.name == "orrery"


def test_every_imported_provider_is_counted_above() -> None:
    found = {(str(path.parent.relative_to(TOPOLOGIES)), path.stem) for path in measured_tables() if not is_own(path)}
    assert found == {(directory, kernel) for directory, kernel, _ in SHIPPED if directory.startswith("devices/")}


@pytest.mark.parametrize("path", [path for path in measured_tables() if is_own(path)], ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_own_tables_have_the_rows_that_their_meta_counts_and_name_their_revision(path: Path) -> None:
    table = (path.parent / "meta.yaml").read_text().split(f"  {path.stem}:\n")[1]
    assert table.startswith(f"    rows: {len(rows_of(path))}\n")
    assert re.match(r'(?s)\n(      .*?\n)*?      revision: "[0-9a-f]{12}"\n', table.split("measured_with:")[1])
    assert {row["l2"] for row in rows_of(path)} <= {"cold", "warm"}
    assert all(float(row["time_us"]) > 0 and int(row["samples"]) >= 5 for row in rows_of(path))


@pytest.mark.parametrize(("table", "point", "time_us"), KNOWN_ROWS)
def test_a_known_row_is_found_in_microseconds(table: str, point: dict[str, str], time_us: str) -> None:
    (row,) = [row for row in rows_of(TOPOLOGIES / f"{table}.csv") if point.items() <= row.items()]
    assert row["time_us"] == time_us


@pytest.mark.parametrize("provider", ["vllm-0.24.0", "trtllm-1.3.0rc20", "sglang-0.5.14"])
def test_shipped_times_are_plausible_microseconds(provider: str) -> None:
    # An 8192^3 bf16 GEMM is 1.1e12 FLOP: at 500 to 989 TFLOP/s 1.1 to 2.2 ms.
    rows = rows_of(TOPOLOGIES / "devices/h200-sxm" / provider / "gemm.csv")
    (row,) = [row for row in rows if (row["dtype"], row["m"], row["n"], row["k"]) == ("bf16", "8192", "8192", "8192")]
    assert 1100 < float(row["time_us"]) < 2200


def test_every_point_of_a_provider_stands_once() -> None:
    for path in measured_tables():
        with path.open(newline="") as handle:
            header, *rows = csv.reader(handle)
        point = [*range(header.index("time_us")), *(header.index(state) for state in ("l2", "mode") if state in header)]
        assert len({tuple(row[i] for i in point) for row in rows}) == len(rows), path


def test_shipped_tables_name_source_and_licence() -> None:
    metas = [meta for meta in TOPOLOGIES.glob("**/meta.yaml") if "ai-dynamo/aiconfigurator" in meta.read_text()]
    assert len(metas) == 10
    for meta in metas:
        text = meta.read_text()
        assert "licence: Apache-2.0" in text
        assert "NVIDIA CORPORATION" in text
        assert "microseconds" in text
        assert "SPDX-License-Identifier: Apache-2.0" in (meta.parent / "NOTICE").read_text()
    assert "Apache License" in (TOPOLOGIES / "LICENSE-APACHE-2.0").read_text()


def test_shipped_tables_stay_small_enough_for_git() -> None:
    total = sum(path.stat().st_size for path in TOPOLOGIES.rglob("*") if path.is_file())
    assert total < 40e6


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the source tables (../shared) are not here")
def test_importing_again_gives_the_shipped_files(tmp_path: Path) -> None:
    for gpu in ("h200", "h100"):
        words = ["aiconfigurator", SOURCES / f"aiconfigurator_{gpu}", "--machine", f"hgx-{gpu}", "--into", tmp_path]
        subprocess.run([sys.executable, "-m", "orrery", "import", *words], check=True, capture_output=True)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 35
    for path in written:
        shipped = TOPOLOGIES / path.relative_to(tmp_path)
        assert path.read_bytes() == shipped.read_bytes(), f"{shipped}: run the importer again (docs/data.md)"
