"""Finds source tables and reads their rows: CSV, gzipped CSV, Parquet."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ENGINES = ("vllm", "sglang", "trtllm")
NCCL = "nccl"  # stands where the engine stands in names of collective tables

LONGEST_LINE = 1 << 17  # characters; those of tables have 300
LARGEST_TABLE = 1 << 30  # characters; the largest table has 2e7

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
    """Yield (line, row) of a table; the line of a Parquet row is the one it would have in a CSV file.

    Throws TableError, with the line where there is one, for what is no such table.
    """
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=2)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8") as handle:
            yield from _csv_rows(path, handle)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TableError(f"{path}: {error}; expected {'gzipped ' if path.suffix == '.gz' else ''}CSV") from error


def _csv_rows(path: Path, handle: TextIO) -> Iterator[tuple[int, dict[str, str]]]:
    lines = csv.reader(_bounded_lines(path, handle))
    try:
        header = next(lines, [])
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                raise TableError(f"{path}:{lines.line_num}: found {len(cells)} cells; the header has {len(header)}")
            yield lines.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise TableError(f"{path}:{lines.line_num + 1}: {error}; expected CSV") from error


def _bounded_lines(path: Path, handle: TextIO) -> Iterator[str]:
    """Lines of a file that may expand without end: no table has such lines, or so many."""
    length = 0
    number = 0
    while line := handle.readline(LONGEST_LINE + 1):
        number += 1
        length += len(line)
        if len(line) > LONGEST_LINE:
            raise TableError(f"{path}:{number}: the line has more than {LONGEST_LINE:,} characters; expected CSV")
        if length > LARGEST_TABLE:
            raise TableError(f"{path}: holds more than {LARGEST_TABLE:,} characters; no table has as many")
        yield line


def _parquet_rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(f"{path}: reading Parquet needs pyarrow; run: pip install 'orrery[parquet]'") from error
    try:
        table = pyarrow.parquet.ParquetFile(path)
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                yield {name: "" if value is None else str(value) for name, value in row.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: {error}; expected Parquet") from error
