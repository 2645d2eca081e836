"""The tables of a run directory as Parquet, a row group at a time."""

from __future__ import annotations

import importlib.util
import pathlib

TABLES = ("requests", "steps")
PART_BYTES = 16 << 20  # of CSV text in a row group


def check_installed() -> None:
    """Raises ModuleNotFoundError saying what to install."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError("Parquet needs the package pyarrow; run: pip install 'orrery[parquet]'")


def write(run_dir: pathlib.Path) -> None:
    """Writes requests.parquet and steps.parquet beside the CSV files of `run_dir`: the same columns and rows.

    Times are doubles, what is counted 64-bit integers; what is empty in the CSV file is null.
    """
    check_installed()
    import pyarrow.parquet

    for name in TABLES:
        with _reader(run_dir / f"{name}.csv") as reader:
            with pyarrow.parquet.ParquetWriter(run_dir / f"{name}.parquet", reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)


def _reader(path: pathlib.Path):
    import pyarrow
    import pyarrow.csv

    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
    types = {name: pyarrow.float64() if name.endswith("_s") else pyarrow.int64() for name in names}
    return pyarrow.csv.open_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(block_size=PART_BYTES, use_threads=False),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types),
    )
