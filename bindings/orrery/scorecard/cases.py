"""Published measurements read from CSV: one case is one configuration with the metrics measured on it.

The columns are those of data/serving/published_serving.csv. `id` numbers the measurement, what stands
before its first "-" is the family (one source); rows of one `case_id` agree in every other column but
`metric`, `value` and `unit`. A file that cannot be split into cells is an error; a row without a case, a cell that is
empty or no number where one belongs is the `problem` of its case. Cells in other spellings are read as `spelling` has them.
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

from . import data_sheet, rules, seats, spelling

IDENTITY = ("id", "case_id", "metric", "value", "unit")
CONFIGURATION = (
    "model", "precision", "gpu", "num_gpus", "parallelism", "phase", "isl", "osl", "batch_or_concurrency", "notes",
    "quality", "engine", "engine_version", "gpu_key", "model_file", "weights_dtype", "kv_dtype", "layout", "tp", "pp",
    "attention_dp", "moe_tp", "moe_ep", "replicas", "max_batch", "max_num_tokens", "load_kind", "load_value", "lengths",
    "structured")  # fmt: skip
COLUMNS = ("source", *IDENTITY, *CONFIGURATION)
OPTIONAL = ("num_nodes", "spec_decoding")  # of a configuration, empty in files without the column
WHOLE = ("num_gpus", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "replicas", "max_batch", "max_num_tokens")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One published number; repeats of a metric on one configuration are averaged."""

    metric: str  # as `spelling.metric` has it, and the unit likewise
    value: float
    unit: str


@dataclasses.dataclass(frozen=True)
class Case:
    case_id: str
    line: int  # of its first row
    fields: Mapping[str, str]  # `CONFIGURATION`, `source`, and `family`
    measurements: tuple[Measurement, ...]
    problem: str = ""  # what is wrong with the case's cells, with file, line and column
    contradiction: str = ""  # why the row cannot be right as it stands (rules.CONTRADICTIONS, data_sheet, seats)

    @property
    def family(self) -> str:
        return self.fields["family"]

    def whole(self, column: str, default: int) -> int:
        """A whole number of `WHOLE`; `default` where the cell is empty."""
        return int(self.fields[column] or default)


def read_cases(path: pathlib.Path) -> list[Case]:
    """Cases in the file's order. Throws ValueError with file, line and column name."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            return _read(path, reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: found no CSV in UTF-8 ({error})") from None


def _read(path: pathlib.Path, reader: csv.DictReader[str]) -> list[Case]:
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}:1: missing column '{missing[0]}'; expected {', '.join(COLUMNS)}")
    groups: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for row in reader:
        line = reader.line_num
        if None in row or None in row.values():
            raise ValueError(f"{path}:{line}: found {'more' if None in row else 'fewer'} cells than columns")
        case_id = row["case_id"] if row["case_id"].strip() and row["case_id"].isprintable() else f"(line {line})"
        groups.setdefault(case_id, []).append((line, row))
    if not groups:
        raise ValueError(f"{path}:2: found no rows")
    cases = [_case(path, case_id, group) for case_id, group in groups.items()]
    too_fast = data_sheet.contradictions(cases)
    cases = [dataclasses.replace(case, contradiction=rules.contradiction(case.fields) or too_fast.get(case.case_id, "")) for case in cases]
    waiting = seats.contradictions(case for case in cases if not case.contradiction)
    return [dataclasses.replace(case, contradiction=case.contradiction or waiting.get(case.case_id, "")) for case in cases]


def _problem(path: pathlib.Path, line: int, row: Mapping[str, str], first_line: int, first: Mapping[str, str]) -> str:
    for name in IDENTITY:
        if not row[name].strip():
            return f"{path}:{line}: column '{name}' is empty"
        if not row[name].isprintable():
            return f"{path}:{line}: column '{name}': found {row[name][:60]!r}, expected one line of text"
    for name in CONFIGURATION:
        if name != "notes" and row[name] != first[name]:
            return (f"{path}:{line}: column '{name}': found '{row[name]}', but line {first_line} of the same case "
                    f"has '{first[name]}'")  # fmt: skip
        if name != "notes" and not row[name].isprintable():
            return f"{path}:{line}: column '{name}': found {row[name][:60]!r}, expected one line of text"
    return _no_number(path, line, row)


def _no_number(path: pathlib.Path, line: int, row: Mapping[str, str]) -> str:
    """What of a row ought to be a number and is none, as its source spells it."""
    read = spelling.spelled(row)
    for name in WHOLE:
        if read[name] and not re.fullmatch(r"[1-9][0-9]{0,8}", read[name]):
            return f"{path}:{line}: column '{name}': found '{row[name][:60]}', expected a whole number above 0, of at most 9 digits"
    for name, text in (("load_value", read["load_value"]), ("value", row["value"])):
        if text and spelling.positive(text) is None:
            return f"{path}:{line}: column '{name}': found '{row[name]}', expected a number above 0"
    return ""


def _case(path: pathlib.Path, case_id: str, group: Sequence[tuple[int, dict[str, str]]]) -> Case:
    first_line, first = group[0]
    problem = next(filter(None, (_problem(path, line, row, first_line, first) for line, row in group)), "")
    values: dict[tuple[str, str], list[float]] = {}
    for _, row in group:
        if value := spelling.positive(row["value"]):
            values.setdefault((spelling.metric(row["metric"]), spelling.unit(row["unit"].strip())), []).append(value)
    cells = spelling.spelled(first)
    fields = {name: cells.get(name, "") for name in ("source", *CONFIGURATION, *OPTIONAL)}
    fields["family"] = first["id"].partition("-")[0]
    measurements = tuple(Measurement(metric, sum(v) / len(v), unit) for (metric, unit), v in values.items())
    return Case(case_id, first_line, fields if problem else rules.corrected(fields), measurements, problem)


def select(cases: Iterable[Case], filters: Iterable[str]) -> list[Case]:
    """The cases whose columns have the values of every "key=value"; keys are columns, family or case_id.

    Throws ValueError for an unknown key or when none is left.
    """
    chosen = list(cases)
    for text in filters:
        key, equals, value = text.partition("=")
        known = ("case_id", "family", "source", *CONFIGURATION)
        if not equals or key not in known:
            raise ValueError(f"filter '{text}': expected key=value with a key among {', '.join(known)}")
        found = sorted({_value(case, key) for case in chosen})
        chosen = [case for case in chosen if _value(case, key) == value]
        if not chosen:
            raise ValueError(f"filter '{text}': no case is left; '{key}' takes {', '.join(map(repr, found[:20]))}")
    return chosen


def _value(case: Case, key: str) -> str:
    return case.case_id if key == "case_id" else case.fields[key]
