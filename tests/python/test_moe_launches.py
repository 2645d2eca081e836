"""Launches and communication of layers of experts beside each other: kernels/compare/moe_launches.py."""

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernels/compare"))

import moe_launches  # noqa: E402

COLUMNS = ("model", "tokens", "design", "mode", "load", "impose", "streams", "fuse", "gather", "dp", "comm", "chunks", "gpus", "dtype", "ours_us",
           "launches", "host_syncs", "comm_us", "comm_share", "exposed_us", "error")  # fmt: skip
PLAIN = {"model": "flash_64", "tokens": "16384", "design": "shuffling", "mode": "eager", "load": "router", "impose": "", "streams": "1", "fuse": "0",
         "gather": "0", "dp": "2", "comm": "eager", "chunks": "1", "gpus": "2", "dtype": "bf16", "ours_us": "1230.7", "launches": "14",
         "host_syncs": "1", "comm_us": "310.4", "comm_share": "0.2519", "exposed_us": "300.2", "error": ""}  # fmt: skip


def written(directory: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    directory.mkdir()
    with (directory / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**PLAIN, **row} for row in rows)
    return directory


def test_designs_of_a_layer_stand_beneath_each_other(tmp_path, capsys) -> None:
    kernel = {"design": "persistent", "mode": "graph", "comm": "", "ours_us": "927.9", "launches": "1", "host_syncs": "0", "comm_us": "",
              "comm_share": "", "exposed_us": ""}  # fmt: skip
    one = written(tmp_path / "one", {}, {"model": "qwen3_30b"}, {"ours_us": "", "error": "out of memory"})
    two = written(tmp_path / "two", kernel, {"comm": "copies", "chunks": "2"}, {"mode": "graph", "comm": "graph", "load": "zipf:1.0", "impose": "bias"})
    assert moe_launches.main([str(one), str(two)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[5] for line in lines] == [
        "design", "---", "shuffling, eager", "persistent", "shuffling, eager, copies, 2 chunks", "shuffling, eager", "shuffling, graph"]  # fmt: skip
    assert lines[2] == "| flash_64 | 8,192 | 2 | bf16 | router | shuffling, eager | 14 | 1 | 1,231 | 310 | 25 % | 300 |"
    assert lines[3] == "| flash_64 | 8,192 | 2 | bf16 | router | persistent | 1 | 0 | 928 | inside |  |  |"
    assert " | zipf:1.0 by bias | " in lines[-1]


def test_rows_without_the_columns_are_an_error(tmp_path, capsys) -> None:
    old = written(tmp_path / "old", {}, columns=tuple(name for name in COLUMNS if name != "comm_share"))
    assert moe_launches.main([str(old)]) == 2
    assert "found no column comm_share" in capsys.readouterr().err
