"""Requests of a workload that is in memory, from whatever holds columns."""

from __future__ import annotations

import collections.abc
import importlib.util
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import numpy as np

_TABLES = ("__array_interface__", "__arrow_c_stream__", "__dataframe__")  # a structured array, a data frame
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def scenario_error(message: str) -> _core.ScenarioError:
    """An error of a scenario that is in no file; `message` names the key."""
    error = _core.ScenarioError(message)
    error.file, error.line, error.column, error.message = "", 0, 0, message
    return error


def is_frame(workload: object) -> bool:
    """Whether it is a table of requests rather than a mapping of a scenario file."""
    if isinstance(workload, collections.abc.Mapping):
        return any(name in workload for name in COLUMNS)
    return isinstance(workload, list) or isinstance(workload, _core.Requests) or any(hasattr(workload, name) for name in _TABLES)


def requests_of(table: Any) -> _core.Requests:
    """Requests of the columns arrival_s, prompt_tokens and output_tokens of `table`; it may have others.

    Raises ScenarioError, which names the row (the first is 1).
    """
    if isinstance(table, _core.Requests):
        return table
    import numpy as np

    table = _with_columns(_columns_of_list(table) if isinstance(table, list) else table)
    names = _names(table)
    if missing := [name for name in COLUMNS if name not in names]:
        raise scenario_error(
            f"workload.requests: found the columns {', '.join(map(str, names)) or 'of nothing'} without "
            f"{', '.join(missing)}; expected {', '.join(COLUMNS)}"
        )
    arrivals, prompts, outputs = (np.atleast_1d(np.asarray(table[name])) for name in COLUMNS)
    return _core.Requests(
        arrival_s=_seconds(arrivals),
        prompt_tokens=_counts("prompt_tokens", prompts),
        output_tokens=_counts("output_tokens", outputs),
    )


def _columns_of_list(requests: list[Any]) -> dict[str, list[Any]]:
    """Columns of mappings, one for each request."""
    for index, request in enumerate(requests):
        missing = [name for name in COLUMNS if not isinstance(request, collections.abc.Mapping) or name not in request]
        if missing:
            found = f"a mapping without {', '.join(missing)}" if isinstance(request, collections.abc.Mapping) else f"a {type(request).__name__}"
            raise scenario_error(f"workload.requests:{index + 1}: found {found}; expected one with {', '.join(COLUMNS)}")
    return {name: [request[name] for request in requests] for name in COLUMNS}


def _with_columns(table: Any) -> Any:
    """`table`, or an Arrow table of what gives its columns by the Arrow stream alone."""
    if isinstance(table, collections.abc.Mapping) or hasattr(table, "columns") or hasattr(table, "__array_interface__"):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        if importlib.util.find_spec("pyarrow") is None:
            raise ModuleNotFoundError("an Arrow stream needs the package pyarrow; run: pip install 'orrery[parquet]'")
        import pyarrow

        return pyarrow.table(table)
    if hasattr(table, "__dataframe__"):
        import pandas

        return pandas.api.interchange.from_dataframe(table)
    raise scenario_error(
        f"workload.requests: found a value of type {type(table).__name__}; expected a data frame, a structured array "
        f"or a mapping with the columns {', '.join(COLUMNS)}"
    )


def _names(table: Any) -> list[str]:
    if hasattr(table, "__array_interface__"):
        return list(table.dtype.names or ())
    if isinstance(table, collections.abc.Mapping):
        return list(table)
    return list(getattr(table, "column_names", None) or table.columns)


def _seconds(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    if column.dtype.kind in "mM":
        first = column[0] if column.dtype.kind == "M" and len(column) else np.timedelta64(0, "ns")
        return (column - first) / np.timedelta64(1, "s")
    return _numbers("arrival_s", column)


def _counts(name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    numbers = _numbers(name, column) if column.dtype.kind not in "iu" else column
    if wrong := np.flatnonzero(~(np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers < 2**53))).tolist():
        raise scenario_error(
            f"workload.requests:{wrong[0] + 1}: {name} is {numbers[wrong[0]]}, expected a whole number of tokens of at least 1"
        )
    return numbers.astype(np.int64)


def _numbers(name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        if column.dtype.kind in "US":
            raise TypeError
        return column.astype("float64")
    except (TypeError, ValueError):
        raise scenario_error(
            f"workload.requests: {name} is a column of {column.dtype}; expected one of numbers"
        ) from None


__all__ = ["COLUMNS", "is_frame", "requests_of", "scenario_error"]
