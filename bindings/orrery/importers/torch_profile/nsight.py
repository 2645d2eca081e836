"""Nsight Systems' SQLite export (`nsys export --type sqlite`): kernels, the calls that launched them, NVTX ranges."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3

from .trace import Annotation, Kernel, Trace, TraceError

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def read(path: pathlib.Path) -> Trace:
    """Raises TraceError where the export has no kernels."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return _read(path, database)
    except sqlite3.Error as error:
        raise TraceError(f"{path}: {error}; expected what 'nsys export --type sqlite' writes") from None


def _read(path: pathlib.Path, database: sqlite3.Connection) -> Trace:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if _KERNELS not in tables:
        raise TraceError(f"{path}: found no table {_KERNELS}; expected an export of nsys profile -t cuda --cuda-graph-trace=node")
    texts = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    calls: dict[int, tuple[float, float, str]] = {}
    if _RUNTIME in tables:
        for start, end, name, correlation in database.execute(f"SELECT start, end, nameId, correlationId FROM {_RUNTIME}"):
            calls[correlation] = (start / 1e3, end / 1e3, texts.get(name, ""))
    has_graphs = "graphNodeId" in {row[1] for row in database.execute(f"PRAGMA table_info({_KERNELS})")}
    node = "graphNodeId" if has_graphs else "NULL"
    kernels = []
    for start, end, stream, correlation, name, graph in database.execute(
        f"SELECT start, end, streamId, correlationId, COALESCE(demangledName, shortName), {node} FROM {_KERNELS}"
    ):
        call = calls.get(correlation)
        is_graph = bool(graph) or (call is not None and "GraphLaunch" in call[2])
        launched = call[0] if call is not None else start / 1e3
        kernels.append(Kernel(texts.get(name, str(name)), start / 1e3, (end - start) / 1e3, stream, launched, is_graph))
    for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
        if table in tables:
            for start, end, stream, correlation in database.execute(f"SELECT start, end, streamId, correlationId FROM {table}"):
                call = calls.get(correlation)
                name = "Memcpy" if table.endswith("MEMCPY") else "Memset"
                launched = call[0] if call is not None else start / 1e3
                kernels.append(Kernel(name, start / 1e3, (end - start) / 1e3, stream, launched, False, is_copy=True))
    return Trace(
        path=path,
        kernels=kernels,
        annotations=_ranges(database, tables, texts),
        launches=[(begin, end) for begin, end, name in calls.values() if "Launch" in name],
        device=_device(database, tables),
    )


def _ranges(database: sqlite3.Connection, tables: set[str], texts: dict[int, str]) -> list[Annotation]:
    if "NVTX_EVENTS" not in tables:
        return []
    found = database.execute("SELECT start, end, text, textId FROM NVTX_EVENTS WHERE end IS NOT NULL")
    return [Annotation(text or texts.get(name, ""), start / 1e3, end / 1e3) for start, end, text, name in found]


def _device(database: sqlite3.Connection, tables: set[str]) -> str:
    if "TARGET_INFO_GPU" not in tables:
        return ""
    row = database.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 1").fetchone()
    return str(row[0]) if row else ""
