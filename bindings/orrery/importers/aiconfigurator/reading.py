"""Finds source tables and reads their rows: CSV, gzipped CSV, Parquet."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ENGINES = ("vllm", "sglang", "trtllm")
NCCL = "nccl"  # stands where the engine stands in names of collective tables

_SUFFIX = r"\.(?:csv|csv\.gz|parquet)"
_FLAT = re.compile(rf"(?P<op>\w+)_(?P<engine>{'|'.join(ENGINES)})_(?P<version>\d.*?){_SUFFIX}")
_FLAT_NCCL = re.compile(rf"(?P<op>nccl)_(?P<version>\d.*?){_SUFFIX}")
_NESTED = re.compile(r"(?P<op>\w+)_perf\.(?:txt|csv|parquet)")


class TableError(ValueError):
    """A source table that is not what this importer understands; says which file and line."""


@dataclass(frozen=True, order=True, kw_only=True)
class SourceTable:
    """One file of measurements: what was timed (`op`), with which engine or library, in which version."""

    engine: str
    version: str
    op: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a directory holds, in order of engine, version and op."""

    tables: tuple[SourceTable, ...]

    def find(self, ops: Iterable[str], engine: str, version: str) -> SourceTable | None:
        """The table of one of `ops`; throws TableError when two files hold it."""
        of_engine = [table for table in self.tables if (table.engine, table.version) == (engine, version)]
        found = [table for table in of_engine if table.op in ops]
        if len(found) > 1:
            raise TableError(f"{found[0].path} and {found[1].path} hold the same table; expected one of them")
        return found[0] if found else None


def find_tables(directory: Path) -> Listing:
    """List the tables in `directory` and below; throws TableError when there are none."""
    if not directory.is_dir():
        raise TableError(f"{directory} is not a directory")
    tables = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        if match := _FLAT.fullmatch(path.name):
            tables.append(SourceTable(**match.groupdict(), path=path))
        elif match := _FLAT_NCCL.fullmatch(path.name):
            tables.append(SourceTable(**match.groupdict(), engine=NCCL, path=path))
        elif (match := _NESTED.fullmatch(path.name)) and path.parts[-3:-2] and path.parts[-3] in (*ENGINES, NCCL):
            tables.append(SourceTable(op=match["op"], engine=path.parts[-3], version=path.parts[-2], path=path))
    if not tables:
        raise TableError(
            f"{directory} holds no table; expected files such as gemm_vllm_0.24.0.csv.gz or"
            " vllm/0.24.0/gemm_perf.parquet"
        )
    return Listing(tables=tuple(sorted(tables)))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of a table; the line of a Parquet row is the one it would have in a CSV file."""
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=2)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as handle:
        try:
            yield from enumerate(csv.DictReader(handle), start=2)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise TableError(f"{path}: {error}; expected {'gzipped ' if path.suffix == '.gz' else ''}CSV") from error


def _parquet_rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(f"{path}: reading Parquet needs pyarrow; run: pip install 'orrery[parquet]'") from error
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise TableError(f"{path}: {error}; expected Parquet") from error
    for batch in table.iter_batches():
        for row in batch.to_pylist():
            yield {name: "" if value is None else str(value) for name, value in row.items()}
