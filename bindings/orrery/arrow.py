"""Columns as an Arrow stream, which Polars, Arrow, pandas and DuckDB read without a copy through Python."""

from __future__ import annotations

import collections.abc
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow


def to_arrow(columns: collections.abc.Mapping[str, Any]) -> pyarrow.Table:
    """Arrow table of `columns`. Raises ModuleNotFoundError saying what to install."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError("an Arrow table needs the package pyarrow; run: pip install 'orrery[parquet]'")
    import pyarrow

    return pyarrow.table(dict(columns))


def stream(columns: collections.abc.Mapping[str, Any], requested_schema: object = None) -> object:
    """What `__arrow_c_stream__` returns for a table of `columns`."""
    return to_arrow(columns).__arrow_c_stream__(requested_schema)


__all__ = ["stream", "to_arrow"]
