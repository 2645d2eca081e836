"""Imports NCCL's and the engines' all-reduce tables of one machine."""

from __future__ import annotations

from collections.abc import Callable

from ... import _core
from .reading import ENGINES, NCCL, Listing, SourceTable, TableError, read_rows
from .sources import Row, named_dtype, whole
from .writing import Staged, Written, microseconds, write_csv, write_meta, write_notice, yaml_text

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
HEADER = ("implementation", "version", "mode", "dtype", "num_gpus", "bytes", "time_us")
Measurement = tuple[str, str, str, str, int, int, str]  # as in HEADER

MOST_GPUS = 1_000_000
_CUSTOM_OPS = ("custom_allreduce", "custom_allreduce_graph_vs_eager")
_ELEMENT_BYTES = {"half": 2, "int8": 1, "bfloat16": 2, "float16": 2}

_UNITS = (
    "bytes: the whole buffer as nccl-tests prints it (all_gather: gathered output; reduce_scatter: full input;"
    " all_to_all: all that one rank sends, its own share included); time_us: microseconds"
)
_NOTES = {
    "nccl": (
        "nccl: nccl-tests, calls queued on a stream (not a CUDA graph), hence mode unspecified; version is what the"
        " rows say, whatever the name of the source file",
        "rows that repeat a point are repeats of the measurement; readers take the median",
    ),
    "custom": (
        "custom_<engine>: what the engine dispatches to at that size, so above its size limit it is NCCL again",
        "custom graph: calls replayed from a CUDA graph",
        "custom eager: calls from Python, each with a copy of its input",
    ),
    "custom_vllm": ("custom_vllm eager: floor about 20 us of host time",),
    "custom_sglang": ("custom_sglang eager: floor about 30 us of host time",),
    "custom_trtllm": (
        "custom_trtllm: the source names no mode; the collector replays a CUDA graph of 100 calls, each followed by a"
        " small product whose own time is subtracted, and the least row takes 2.6 us, so mode is graph",
    ),
}


def _bytes(row: Row, dtype: str) -> int:
    if row[dtype] not in _ELEMENT_BYTES:
        raise TableError(f"{dtype} '{row[dtype]}'; expected one of {', '.join(_ELEMENT_BYTES)}")
    elements = whole(row, "message_size")
    if elements < 1:
        raise TableError(f"message_size {elements}; expected 1 or more")
    return elements * _ELEMENT_BYTES[row[dtype]]


def _num_gpus(row: Row) -> int:
    number = whole(row, "num_gpus")
    if not 2 <= number <= MOST_GPUS:
        raise TableError(f"num_gpus {number}; expected 2 to {MOST_GPUS:,}")
    return number


def _nccl_row(row: Row, _: SourceTable) -> tuple[str, Measurement]:
    if row["op_name"] not in COLLECTIVES:
        raise TableError(f"op_name '{row['op_name']}'; expected one of {', '.join(COLLECTIVES)}")
    size = _bytes(row, "nccl_dtype")
    return COLLECTIVES[row["op_name"]], (NCCL, row["version"], "unspecified", named_dtype(row["nccl_dtype"]),
                                         _num_gpus(row), size, microseconds(row["latency"]))  # fmt: skip


def _custom_row(row: Row, table: SourceTable) -> tuple[str, Measurement]:
    # TensorRT-LLM's table has no column `backend`; see the note above.
    mode = row["backend"].rpartition("_")[2] if "backend" in row or table.engine != "trtllm" else "graph"
    if mode not in ("graph", "eager"):
        raise TableError(f"backend '{row['backend']}'; expected {table.engine}_graph or {table.engine}_eager")
    size = _bytes(row, "allreduce_dtype")
    return "all_reduce", (f"custom_{table.engine}", f"{table.engine}-{row['version']}", mode,
                          named_dtype(row["allreduce_dtype"]), _num_gpus(row), size,
                          microseconds(row["latency"]))  # fmt: skip


def _parser(table: SourceTable) -> Callable[[Row, SourceTable], tuple[str, Measurement]] | None:
    if (table.engine, table.op) == (NCCL, NCCL):
        return _nccl_row
    return _custom_row if table.engine in ENGINES and table.op in _CUSTOM_OPS else None


def is_collective(table: SourceTable) -> bool:
    """Whether `import_collectives` reads this table."""
    return _parser(table) is not None


def import_collectives(listing: Listing, staged: Staged, *, machine: str) -> dict[str, Written]:
    """Import NCCL and custom all-reduce tables of every engine; returns what was written by collective.

    Throws TableError, with file and line where a row does not fit, and when there is nothing to import; FileExistsError
    for tables that are there already.
    """
    rows: dict[str, list[Measurement]] = {}
    tables: dict[str, Written] = {}
    implementations = set()
    for table in listing.tables:
        parse = _parser(table)
        if parse is None:
            continue
        for line, source_row in read_rows(table.path):
            try:
                collective, row = parse(source_row, table)
            except KeyError as error:
                found = ", ".join(map(str, source_row))
                raise TableError(f"{table.path}:{line}: no column {error}; found {found}") from error
            except (TypeError, ValueError) as error:
                raise TableError(f"{table.path}:{line}: {error}") from error
            rows.setdefault(collective, []).append(row)
            implementations.add(row[0])
            written = tables.setdefault(collective, Written())
            written.rows += 1
            if table.path.name not in written.files:
                written.files.append(table.path.name)
    if not rows:
        raise TableError("no collective table; expected nccl_<version>.csv or custom_allreduce_<engine>_<version>.csv")
    directory = staged.directory(machine)
    staged.require_new(directory, rows)
    for collective in rows:
        ordered = sorted(rows[collective], key=lambda row: (*row[:-1], float(row[-1])))
        write_csv(directory / f"{collective}.csv", HEADER, ordered)
    customs = sorted(implementations - {NCCL})
    keys = (*({NCCL} & implementations), *(("custom", *customs) if customs else ()))
    notes = [note for key in keys for note in _NOTES[key]]
    head = [f"machine: {machine}", f"units: {yaml_text(_UNITS)}", "notes:", *(f"  - {yaml_text(n)}" for n in notes)]
    write_meta(directory, head, dict(sorted(tables.items())))
    write_notice(directory, f"collectives on {machine}")
    _core.collective_curves(str(directory))  # what the simulator cannot read is not published
    return tables
