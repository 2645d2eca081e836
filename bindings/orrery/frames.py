"""A table of simulated plans: its rows, the best of them, the Pareto front, plots, and other libraries' tables of it."""

from __future__ import annotations

import collections.abc
import dataclasses
import html
import math
from typing import TYPE_CHECKING, Any, Self

from . import arrow

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects
    import pyarrow

Row = dict[str, Any]

# Which way is better; of other columns the caller says.
MORE_IS_BETTER = (
    "output_tokens_per_s", "output_tokens_per_s_per_gpu", "requests_per_s", "goodput", "slo_attainment", "basis_measured",
)  # fmt: skip
LESS_IS_BETTER = ("num_gpus", "preemptions", "duration_s")
_LATENCIES = ("ttft_s_", "tpot_s_", "itl_s_", "e2e_s_")


@dataclasses.dataclass(frozen=True, eq=False)
class ResultFrame:
    """Rows of figures, one for each plan; a value that a row does not have is None.

    Names carry the unit (`ttft_s_p99`). Libraries that read Arrow streams take it as it is (`polars.DataFrame(frame)`,
    `pyarrow.table(frame)`), which needs the package pyarrow.
    """

    _rows: tuple[Row, ...]  # all with the same keys
    _varied: tuple[str, ...]  # columns that say what was varied

    def rows(self) -> list[Row]:
        """A dict for each row."""
        return [dict(row) for row in self._rows]

    def columns(self) -> dict[str, list[Any]]:
        """A list for each column."""
        return {name: [row[name] for row in self._rows] for name in (self._rows[0] if self._rows else ())}

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a data frame; counts that some rows lack are of pandas' type Int64, truths boolean."""
        import pandas

        columns = {}
        for name, values in self.columns().items():
            kinds = {type(value) for value in values}
            dtype = {bool: "boolean", int: "Int64"}.get(*kinds - {type(None)}) if len(kinds) == 2 and None in values else None
            columns[name] = pandas.Series(values, dtype=dtype)
        return pandas.DataFrame(columns)

    def to_arrow(self) -> pyarrow.Table:
        """The table as one of Arrow. Raises ModuleNotFoundError where the package pyarrow is missing."""
        return arrow.to_arrow({name: _one_type(values) for name, values in self.columns().items()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def where(self, condition: str | collections.abc.Callable[[Row], bool]) -> Self:
        """The rows that meet a condition: an expression of pandas' `query`, or a function of a row as a dict.

        A row that lacks a value which an expression names is left out.
        """
        if isinstance(condition, str):
            kept = self.to_pandas().query(condition, engine="python").index
            return self._of([self._rows[index] for index in kept])
        return self._of([row for row in self._rows if condition(dict(row))])

    def best(self, key: str, *, largest: bool | None = None) -> Row:
        """The row whose `key` is best; of equals, the first.

        Latencies and counts of GPUs are best small, rates and shares within the SLO large; of other columns `largest`
        says it. Raises KeyError for an unknown column and ValueError where no row has a value.
        """
        sign = self._sign(key, largest)
        with_value = [row for row in self._rows if _is_number(row.get(key))]
        if not with_value:
            raise ValueError(f"no row has a value of {key}{self._first_error()}")
        return dict(min(with_value, key=lambda row: sign * row[key]))

    def pareto(self, x: str, y: str, *, largest: collections.abc.Mapping[str, bool] | None = None) -> Self:
        """The rows that no other row beats in `x` and `y` at once, best `x` first.

        Which way is better as in `best`; `largest` says it of a column by name. Raises as `best`.
        """
        ways = largest or {}
        sign_x, sign_y = self._sign(x, ways.get(x)), self._sign(y, ways.get(y))
        both = [row for row in self._rows if _is_number(row.get(x)) and _is_number(row.get(y))]
        if not both:
            raise ValueError(f"no row has values of {x} and {y}{self._first_error()}")
        front: list[Row] = []
        for row in sorted(both, key=lambda row: (sign_x * row[x], sign_y * row[y])):
            if not front or sign_y * row[y] < sign_y * front[-1][y]:
                front.append(row)
        return self._of(front)

    def plot(self, x: str, y: str, colour: str | None = None) -> plotly.graph_objects.Figure:
        """A point for each row that has both values, its colour by another column; what was varied shows on hover."""
        from . import plots

        for name in filter(None, (x, y, colour)):
            self._check(name)
        return plots.points(self, x, y, colour, self._varied)

    def _of(self, rows: collections.abc.Iterable[Row]) -> Self:
        return dataclasses.replace(self, _rows=tuple(rows))

    def _check(self, key: str) -> None:
        if key not in (names := self.columns()):
            import difflib

            near = difflib.get_close_matches(key, names, n=1, cutoff=0)
            raise KeyError(f"unknown column '{key}'" + (f"; did you mean '{near[0]}'?" if near else ""))

    def _sign(self, key: str, largest: bool | None) -> int:
        self._check(key)
        if largest is None:
            if key in MORE_IS_BETTER:
                largest = True
            elif key in LESS_IS_BETTER or key.startswith(_LATENCIES):
                largest = False
            else:
                raise ValueError(f"{key}: neither way is better by itself; say largest=True or largest=False")
        return -1 if largest else 1

    def _first_error(self) -> str:
        error = next((row["error"] for row in self._rows if row.get("error")), None)
        return f"; the first error is: {error}" if error else ""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> collections.abc.Iterator[Row]:
        return iter(self.rows())

    def __getitem__(self, name: str) -> list[Any]:
        """The values of a column."""
        self._check(name)
        return self.columns()[name]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.columns())

    def __repr__(self) -> str:
        failed = sum(bool(row.get("error")) for row in self._rows)
        return f"{type(self).__name__}({len(self)} rows{f', {failed} with errors' if failed else ''}; varied: {', '.join(self._varied)})"

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(max_rows=20, max_cols=20)) + f"<p>{html.escape(repr(self))}</p>"


def filled(rows: collections.abc.Sequence[Row]) -> tuple[Row, ...]:
    """The rows, each with the keys of all; a value that it did not have is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return tuple({name: row.get(name) for name in names} for row in rows)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _one_type(values: list[Any]) -> list[Any]:
    """The values, or where their types differ and are not numbers their texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds <= {int, float}:
        return values
    return [None if value is None else str(value) for value in values]


__all__ = ["LESS_IS_BETTER", "MORE_IS_BETTER", "ResultFrame", "Row", "filled"]
