"""Traces of requests in formats that the simulator does not read itself; it calls `read` for them.

    format       known by                                                       arrivals
    tables       the columns of _LAYOUTS, or those that `columns:` names        seconds, another time_unit, or ISO 8601 times
      CSV        (`,` `;` tab or `|` between cells), Parquet, a list of JSON objects or one in each line; what is
                 nested in them has names with dots (`usage.prompt_tokens`)
    benchmarks   what compare/bench_files.py reads, with single requests        as sent; requests that failed are left out
    ShareGPT     a list of objects with conversations: the first question       none
                 and answer of each are a request, lengths are characters / chars_per_token

A table with session_id (or the column that `columns.session` names) has turns of sessions, in order of arrival; with think_time_s (or
`columns.wait`) a turn follows that long after the answer before it, and else comes at its arrival, if that answer has come by then.

Each may be packed by gzip, as may be what the simulator reads itself. Where there are no arrivals, `requests_per_s` draws them.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import io
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, json_values
from .compare import bench_files
from .compare.bench_files import cut

if TYPE_CHECKING:
    import pandas

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SEPARATORS = ",;\t|"
_DEEPEST = 3  # objects in objects
_PARQUET = b"PAR1"
_SESSION, _WAIT = "session_id", "think_time_s"
_EXPECTED = "a table of requests, a benchmark's JSON or ShareGPT's conversations"


@dataclasses.dataclass(frozen=True)
class _Layout:
    name: str
    arrival: str
    prompt: str
    output: str
    time_unit: str = "s"


_LAYOUTS = (
    _Layout("Orrery", "arrival_s", "prompt_tokens", "output_tokens"),
    _Layout("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),  # Azure/AzurePublicDataset
    _Layout("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),  # microsoft/vidur, data/processed_traces
    _Layout("BurstGPT", "Timestamp", "Request tokens", "Response tokens"),  # HPMLL/BurstGPT, data
    _Layout("Mooncake", "timestamp", "input_length", "output_length", "ms"),  # kvcache-ai/Mooncake, FAST25-release/traces
)


@dataclasses.dataclass(frozen=True)
class _Table:
    """Requests as a file has them; an entry that is not there is None."""

    arrival: collections.abc.Sequence[Any] | None
    prompt: collections.abc.Sequence[Any]
    output: collections.abc.Sequence[Any]
    time_unit: str
    names: tuple[str, str, str]
    first_row: int  # what errors call it: line 2 of CSV, request 1
    notes: tuple[str, ...] = ()
    session: collections.abc.Sequence[Any] | None = None
    wait: collections.abc.Sequence[Any] | None = None

    def at(self, index: int) -> str:
        return f":{index + self.first_row}"


def read(file: str | pathlib.Path, options: _core.TraceOptions, seed: int) -> _core.Requests:
    """The requests of a trace; what is read once is kept. Raises ValueError that names the file."""
    path = pathlib.Path(file)
    try:
        state = path.stat()
        return _kept(path, _Options.of(options), seed, (state.st_mtime_ns, state.st_size, state.st_ino))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


@dataclasses.dataclass(frozen=True)
class _Options:
    """_core.TraceOptions as a key."""

    arrival: str
    prompt: str
    output: str
    session: str
    wait: str
    time_unit: str
    sort: bool
    drop_invalid: bool
    requests_per_s: float
    chars_per_token: float

    @classmethod
    def of(cls, options: _core.TraceOptions) -> _Options:
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})


@functools.lru_cache(maxsize=4)
def _kept(path: pathlib.Path, options: _Options, seed: int, state: object) -> _core.Requests:
    if options == _Options("", "", "", "", "", "", False, False, 0, 0) and (own := _own(path)):
        return own
    table = _table(path, options)
    if not len(table.prompt):
        raise ValueError(f"{path}: holds no request")
    return _requests(path, table, options, seed)


def _own(path: pathlib.Path) -> _core.Requests | None:
    """What the simulator reads itself, once it is unpacked."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return None
    with _unpacked_file(path) as plain:
        try:
            return _core.own_requests(plain)
        except ValueError as error:
            raise ValueError(str(error).replace(str(plain), str(path))) from None


@contextlib.contextmanager
def _unpacked_file(path: pathlib.Path) -> collections.abc.Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "trace"
        plain.write_bytes(json_values.unpacked(path))
        yield plain


def _table(path: pathlib.Path, options: _Options) -> _Table:
    content = json_values.unpacked(path)
    if content.startswith(_PARQUET):
        return _of_frame(path, _parquet(path, content), options, first_row=1)
    start = content[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start not in (b"{", b"["):
        return _of_frame(path, _csv(path, content), options, first_row=2)
    del content
    values = json_values.read(path, _EXPECTED)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise ValueError(f"{path}:{index + 1}: found {type(value).__name__}; expected an object for each request")
    if values and "conversations" in values[0]:
        return _sharegpt(path, values, options)
    if values and bench_files.is_bench(values[0]):
        return _of_bench(bench_files.of_objects(path, values))
    import pandas

    return _of_frame(path, pandas.DataFrame([_flat(value) for value in values], dtype=object), options, first_row=1)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """What is nested in an object by names with dots, down to _DEEPEST."""
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict) and prefix.count(".") < _DEEPEST:
            flat |= _flat(inner, f"{prefix}{name}.")
        else:
            flat[prefix + name] = inner
    return flat


def _csv(path: pathlib.Path, content: bytes) -> pandas.DataFrame:
    import pandas

    head = content[: 1 << 16].partition(b"\n")[0].decode("utf-8", "replace")
    separator = max(_SEPARATORS, key=head.count)
    try:
        # The header as a row, so that rows longer than it are refused.
        rows = pandas.read_csv(io.BytesIO(content), sep=separator, header=None, dtype=str, keep_default_na=False,
                               skipinitialspace=True, encoding="utf-8-sig", skip_blank_lines=False)  # fmt: skip
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found no CSV: byte 0x{error.object[error.start]:02x} at {error.start} is no UTF-8") from None
    except (ValueError, OverflowError) as error:  # ParserError is a ValueError
        raise ValueError(f"{path}: found no CSV: {cut(str(error).strip())}") from None
    names = [str(name).strip() for name in rows.iloc[0]]
    frame = rows.iloc[1:].reset_index(drop=True)
    frame.columns = pandas.Index(names)
    while len(frame) and not "".join(map(str, frame.iloc[-1].fillna(""))):  # empty lines at the end
        frame = frame.iloc[:-1]
    return frame


def _parquet(path: pathlib.Path, content: bytes) -> pandas.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError(f"{path}: a Parquet file needs the package pyarrow; run: pip install 'orrery[parquet]'")
    import pandas
    import pyarrow

    try:
        return pandas.read_parquet(io.BytesIO(content))
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: damaged Parquet: {cut(str(error))}") from None


def _of_frame(path: pathlib.Path, frame: pandas.DataFrame, options: _Options, *, first_row: int) -> _Table:
    names = [str(name) for name in frame.columns]
    where = f"{path}:1" if first_row == 2 else str(path)  # the header's line
    layout = _layout(where, names, options)
    columns = (layout.arrival, layout.prompt, layout.output)
    session = options.session or (_SESSION if _SESSION in names and not options.prompt else "")
    wait = options.wait or (_WAIT if session and _WAIT in names and not options.prompt else "")
    for name in (*columns, *filter(None, (session, wait))):
        if names.count(name) > 1:
            raise ValueError(f"{where}: found the column {cut(name)} twice; expected it once")
    arrival = frame[layout.arrival].tolist() if layout.arrival in names and not options.requests_per_s else None
    notes = []
    if arrival is not None and layout.time_unit != "s" and not options.time_unit:
        notes.append(f"{path.name}: {layout.arrival} is read in {layout.time_unit}, as {layout.name} writes it")
    if "hash_ids" in names:
        notes.append(f"{path.name}: hash_ids are not read where the trace has options, so that no prompts share blocks")
    return _Table(arrival, frame[layout.prompt].tolist(), frame[layout.output].tolist(),
                  options.time_unit or layout.time_unit, columns, first_row, tuple(notes),
                  frame[session].tolist() if session else None, frame[wait].tolist() if wait else None)  # fmt: skip


def _layout(where: str, names: list[str], options: _Options) -> _Layout:
    """The columns that `columns:` names, or of the first known layout that is all there."""
    found = f"found the columns {cut(', '.join(names)) or 'of nothing'}"
    if options.prompt:
        for key in ("arrival", "prompt", "output", "session", "wait"):
            name = getattr(options, key)
            if name and name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0)
                meant = f"; did you mean '{cut(near[0])}'?" if near else ""
                raise ValueError(f"{where}: {found} without '{cut(name)}', which columns.{key} names{meant}")
        return _Layout("", options.arrival, options.prompt, options.output)
    needed = {layout: [layout.arrival] * (not options.requests_per_s) + [layout.prompt, layout.output] for layout in _LAYOUTS}
    for layout, columns in needed.items():
        if all(name in names for name in columns):
            return layout
    nearest = max(needed, key=lambda layout: sum(name in names for name in needed[layout]))
    missing = ", ".join(name for name in needed[nearest] if name not in names)
    known = "; ".join(f"{', '.join(columns)} ({layout.name})" for layout, columns in needed.items())
    draws = ", or requests_per_s, which draws arrivals" if missing == nearest.arrival else ""
    raise ValueError(f"{where}: {found} without {missing}; expected those of a known format ({known}), or their names in"
                     f" columns: {{arrival: ..., prompt: ..., output: ...}}{draws}")  # fmt: skip


def _of_bench(bench: bench_files.Bench) -> _Table:
    if bench.requests is None:
        raise ValueError(f"{bench.path}: found figures of {bench.tool} without single requests; expected a file with them"
                         " (vllm bench serve --save-detailed, bench_serving --output-details, profile_export.jsonl)")  # fmt: skip
    columns = bench.requests
    has_times = bool(np.isfinite(columns["start_s"]).all())
    left_out = f"{bench.path.name}: {bench.num_failed} of {bench.num_failed + bench.num_requests} requests failed and are left out"
    return _Table(columns["start_s"].tolist() if has_times else None, columns["prompt_tokens"].tolist(), columns["output_tokens"].tolist(),
                  "s", ("start", "prompt_tokens", "output_tokens"), 1,
                  (*bench.notes, *([left_out] if bench.num_failed else [])))  # fmt: skip


def _sharegpt(path: pathlib.Path, values: list[dict[str, Any]], options: _Options) -> _Table:
    if not options.chars_per_token:
        raise ValueError(f"{path}: found conversations, which are text; expected chars_per_token (about 4 in English) for their lengths in tokens")
    prompts, outputs = [], []
    for index, value in enumerate(values):
        turns = value.get("conversations")
        try:
            texts = [turn["value"] for turn in turns[:2]]  # type: ignore[index]
            lengths = [max(round(len(text) / options.chars_per_token), 1) for text in texts if isinstance(text, str) and text]
        except (TypeError, KeyError):
            raise ValueError(f"{path}:{index + 1}: expected conversations: [{{from: ..., value: TEXT}}, ...]") from None
        if len(lengths) == 2:
            prompts.append(lengths[0])
            outputs.append(lengths[1])
    notes = [f"{path.name}: lengths are characters / {options.chars_per_token:g}, no tokenizer's"]
    if len(prompts) < len(values):
        notes.append(f"{path.name}: {len(values) - len(prompts):,} of {len(values):,} conversations have no answer and are left out")
    return _Table(None, prompts, outputs, "s", ("", "question", "answer"), 1, tuple(notes))


def _requests(path: pathlib.Path, table: _Table, options: _Options, seed: int) -> _core.Requests:
    notes = list(table.notes)
    prompts, outputs = _lengths(table.prompt), _lengths(table.output)
    is_valid = (prompts >= 1) & (outputs >= 1)
    if not is_valid.all():
        if not options.drop_invalid:
            wrong = int(np.flatnonzero(~is_valid)[0])
            column, name = (table.prompt, table.names[1]) if prompts[wrong] < 1 else (table.output, table.names[2])
            raise ValueError(f"{path}{table.at(wrong)}: {cut(name)} is {_quoted(column[wrong])}, expected a whole number of tokens of at"
                             " least 1, or drop_invalid: true, which leaves such requests out")  # fmt: skip
        notes.append(f"{path.name}: {int((~is_valid).sum()):,} of {len(is_valid):,} requests have no length of at least 1 and are left out")
    rows = np.flatnonzero(is_valid)
    if not len(rows):
        raise ValueError(f"{path}: holds no request with lengths of at least 1")
    if options.requests_per_s:
        arrivals = np.array(_core.poisson_arrivals_s(options.requests_per_s, count=len(rows), seed=seed))
        notes.append(f"{path.name}: arrivals are drawn, Poisson at {options.requests_per_s:g}/s; they are none of the trace's")
    elif table.arrival is None:
        raise ValueError(f"{path}: found no times of arrival; expected requests_per_s, which draws them")
    else:
        arrivals = _seconds(path, table)[rows]
        backwards = np.flatnonzero(np.diff(arrivals) < 0)
        if len(backwards) and not options.sort:
            raise ValueError(f"{path}{table.at(int(rows[backwards[0] + 1]))}: the timestamp is before that of the request above; expected"
                             " ascending ones, or sort: true")  # fmt: skip
        if len(backwards):
            order = np.argsort(arrivals, kind="stable")
            arrivals, rows = arrivals[order], rows[order]
            notes.append(f"{path.name}: requests are sorted by arrival, {len(backwards):,} stood after a later one")
        arrivals = arrivals - arrivals[0]
    sessions = [] if table.session is None else [str(table.session[row]) for row in rows]
    waits = _waits(path, table)[rows] if table.wait is not None else np.zeros(0)
    if sessions:
        notes.append(f"{path.name}: a turn's prompt is taken to hold the turn before it where it is as long")
    try:
        return _core.Requests(arrival_s=arrivals, prompt_tokens=prompts[rows], output_tokens=outputs[rows], notes=notes,
                              session=sessions, wait_s=waits)  # fmt: skip
    except ValueError as error:
        raise ValueError(str(error).replace("workload.requests", str(path))) from None


def _waits(path: pathlib.Path, table: _Table) -> np.ndarray[Any, Any]:
    """Seconds before each turn; of a first turn, which has none, 0 where nothing stands there."""
    assert table.wait is not None and table.session is not None
    empty = np.array([value is None or value == "" or value != value for value in table.wait])
    waits = np.where(empty, 0.0, _numbers(table.wait))
    wrong = np.flatnonzero(~(np.isfinite(waits) & (waits >= 0)))
    if len(wrong):
        raise ValueError(f"{path}{table.at(int(wrong[0]))}: the time before the turn is {_quoted(table.wait[wrong[0]])}, expected seconds of"
                         " at least 0")  # fmt: skip
    return waits


def _lengths(column: collections.abc.Sequence[Any]) -> np.ndarray[Any, Any]:
    """Whole numbers; 0 for what is none."""
    numbers = _numbers(column)
    with np.errstate(invalid="ignore"):
        is_whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers >= 1) & (numbers < 2**53)
    return np.where(is_whole, numbers, 0).astype(np.int64)


def _numbers(column: collections.abc.Sequence[Any]) -> np.ndarray[Any, Any]:
    """Numbers of texts and numbers; nan for what is none."""
    import pandas

    plain = [None if isinstance(value, bool | list | dict) else value for value in column]
    return pandas.to_numeric(pandas.Series(plain, dtype=object), errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def _seconds(path: pathlib.Path, table: _Table) -> np.ndarray[Any, Any]:
    """Arrivals in seconds from the first row: of numbers by their unit, of times by the calendar."""
    import pandas

    assert table.arrival is not None
    numbers = _numbers(table.arrival)
    if np.isfinite(numbers).all() and not hasattr(table.arrival[0], "isoformat"):
        return (numbers - numbers[0]) * _UNITS[table.time_unit]
    if np.isfinite(numbers).any() and not hasattr(table.arrival[0], "isoformat"):  # numbers, but for some
        wrong = int(np.flatnonzero(~np.isfinite(numbers))[0])
    else:
        texts = pandas.Series([str(value) if hasattr(value, "isoformat") else value if isinstance(value, str) else None
                               for value in table.arrival], dtype=object)  # fmt: skip
        times = pandas.to_datetime(texts, utc=True, format="ISO8601", errors="coerce")
        if not times.isna().any():
            return (times - times.iloc[0]).dt.total_seconds().to_numpy(dtype=float)
        wrong = int(np.flatnonzero(times.isna())[0])
    raise ValueError(f"{path}{table.at(wrong)}: {cut(table.names[0])} is {_quoted(table.arrival[wrong])}, expected a number or a time as"
                     " 2023-11-16T18:15:46.68Z")  # fmt: skip


def _quoted(value: object) -> str:
    return f'"{cut(value, 100)}"' if isinstance(value, str) else cut(repr(value), 100)


__all__ = ["read"]
