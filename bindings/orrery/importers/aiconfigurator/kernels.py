"""Imports the op tables of one engine version as a provider."""

from __future__ import annotations

import functools
from pathlib import Path

from ... import _core
from .notes import notes_of
from .reading import Listing, SourceTable, TableError, read_rows
from .sources import KERNELS, Kernel, RowSkipped, source_name
from .writing import Staged, Written, microseconds, write_csv, write_meta, write_notice, yaml_text

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

SLOWER = "slower implementations of a point that was timed with several"

# One measurement: dtype, further columns and dims; then time and implementation.
Point = tuple[str | int, ...]


def _fastest(kernel: Kernel, table: SourceTable, written: Written) -> dict[Point, tuple[str, str]]:
    """The fastest (time, implementation) of every point of `table`; counts what it leaves out in `written`."""
    points: dict[Point, tuple[str, str]] = {}
    for line, row in read_rows(table.path):
        try:
            dims, dtype = kernel.row(row)
            _check_dims(kernel, dims)
            timed = (microseconds(row["latency"]), source_name(row))
            point: Point = (dtype, *(row[name] for name in kernel.extra), *dims)
        except RowSkipped as skipped:
            written.left_out[str(skipped)] += 1
            continue
        except KeyError as error:
            raise TableError(f"{table.path}:{line}: no column {error}; found {', '.join(map(str, row))}") from error
        except (TypeError, ValueError) as error:
            raise TableError(f"{table.path}:{line}: {error}") from error
        if point in points:
            written.left_out[SLOWER] += 1
            timed = min(timed, points[point], key=lambda each: (float(each[0]), each[1]))
        points[point] = timed
    return points


def _check_dims(kernel: Kernel, dims: tuple[int, ...]) -> None:
    may_be_zero = _may_be_zero()[kernel.name]
    for name, size in zip(kernel.dims, dims, strict=True):
        if size < 1 and name not in may_be_zero:
            raise TableError(f"{name} is {size}; expected 1 or more")


@functools.cache
def _may_be_zero() -> dict[str, frozenset[str]]:
    """By kernel; a window of 0 is full attention."""
    return {spec["name"]: frozenset([*spec["may_be_zero"], "window"]) for spec in _core.kernel_specs()}


def _is_host_bound(point: Point, points: dict[Point, tuple[str, str]]) -> bool:
    """Whether an fp8_block GEMM shows the host's floor, judged by its per-tensor fp8 twin."""
    time, source = points[point]
    twin = points.get(("fp8", *point[1:]))
    if point[0] != "fp8_block" or twin is None or source not in HOST_FLOORS_US:
        return False
    floor = HOST_FLOORS_US[source]
    twin_us = float(twin[0])
    is_small = twin_us < min(floor, HOST_BOUND_BELOW * float(time))
    return is_small and (float(time) < floor or float(time) > HOST_HICCUP_ABOVE * twin_us)


def _import_kernel(kernel: Kernel, table: SourceTable, directory: Path) -> Written:
    written = Written(files=[table.path.name], notes=notes_of(kernel.name, table.engine))
    points = _fastest(kernel, table, written)
    written.rows = len(points)
    written.sources = sorted({source for _, source in points.values()})
    # The column stands where it says something.
    host_bound = {point for point in points if kernel.name == "gemm" and _is_host_bound(point, points)}
    flag = ("host_bound",) if host_bound else ()
    rows = []
    for point, (time, source) in points.items():
        flagged = (int(point in host_bound),) if flag else ()
        rows.append((*point, time, *flagged, written.sources.index(source)))
    if rows:  # a table of formats without a name here has none, and an empty file is no table
        header = ("dtype", *kernel.extra, *kernel.dims, "time_us", *flag, "source")
        write_csv(directory / f"{kernel.name}.csv", header, sorted(rows))
    return written


def import_provider(
    listing: Listing, staged: Staged, *, engine: str, version: str, device: str, kernels: list[str] | None = None
) -> dict[str, Written]:
    """Import the op tables of one engine version, or only `kernels`; returns what was written by kernel.

    Throws TableError, with file and line where a row does not fit, and when there is nothing to import; FileExistsError
    for tables that are there already.
    """
    wanted = [kernel for kernel in KERNELS if kernels is None or kernel.name in kernels]
    found_tables = {kernel: table for kernel in wanted if (table := listing.find(kernel.ops, engine, version))}
    if not found_tables:
        found = sorted({f"{table.engine} {table.version}" for table in listing.tables})
        raise TableError(f"no table of {engine} {version} for these kernels; found tables of {', '.join(found)}")
    head = [
        f"provider: {engine}-{version}",
        f"device: {device}",
        f"engine: {engine}",
        f"engine_version: {yaml_text(version)}",
        'units: "time_us: microseconds of one call; sizes: elements, tokens, heads"',
        'order: "rows are sorted by their columns; of several rows of one point the fastest is kept"',
    ]
    directory = staged.directory("devices", device, f"{engine}-{version}")
    staged.require_new(directory, (kernel.name for kernel in found_tables))
    tables = {kernel.name: _import_kernel(kernel, table, directory) for kernel, table in found_tables.items()}
    write_meta(directory, head, tables)
    write_notice(directory, f"{engine} {version} on {device}")
    _core.provider_rows(str(directory))  # what the simulator cannot read is not published
    return tables
