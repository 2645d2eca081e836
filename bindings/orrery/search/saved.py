"""An answer of `orrery explore` read back from its directory."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pathlib
from typing import Any

from ..report import resolved_scenario
from ..report.quantities import is_number

PLAN_COLUMNS = ("id", "shape", "plan", "num_gpus", "simulated", "impossible")
_MOST = 1e18  # beyond it nothing is a figure of this project, and 64 bits end
NUMBER, POSITIVE, SIGNED, TEXT, FLAG = "a number that is not negative", "a positive number", "a number", "a text", "true or false"
_KINDS = {
    NUMBER: lambda value: is_number(value) and 0 <= value < _MOST,
    POSITIVE: lambda value: is_number(value) and 0 < value < _MOST,
    SIGNED: lambda value: is_number(value) and abs(value) < _MOST,
    TEXT: lambda value: isinstance(value, str),
    FLAG: lambda value: isinstance(value, bool),
}


@dataclasses.dataclass(frozen=True)
class Maybe:
    """Of the shape, or null or absent, which then reads as null; as an empty list where a list may be."""

    of: Any


@dataclasses.dataclass(frozen=True)
class Each:
    """An object of any keys."""

    of: Any


@dataclasses.dataclass(frozen=True)
class Served:
    """An outcome: one that could not be served has an error alone."""

    of: Any


# What the report reads of answer.json; further keys are none of its business.
_CHECK = {"name": TEXT, "value": Maybe(NUMBER), "limit": POSITIVE, "is_met": FLAG, "at_most": FLAG}
_LOAD = {"is_overloaded": FLAG, "is_settled": FLAG, "offered_requests_per_s": NUMBER, "served_requests_per_s": NUMBER,
         "waiting_at_last_arrival": NUMBER, "limit": Maybe(TEXT)}  # fmt: skip
_LATENCY = {"p50": NUMBER, "p99": NUMBER}
_OUTCOME = Served({"meets": FLAG, "ttft_s": _LATENCY, "tpot_s": _LATENCY, "load": _LOAD, "slo": [_CHECK], "requests": Maybe(NUMBER),
                   "basis": Maybe(Each(NUMBER))})  # fmt: skip
_PLAN = {"id": NUMBER, "words": TEXT, "num_gpus": POSITIVE, "usd_per_hour": Maybe(POSITIVE), "usd_per_million_output_tokens": Maybe(NUMBER),
         "j_per_output_token": Maybe(NUMBER), "j_per_request": Maybe(NUMBER), "j_per_output_token_interval": Maybe([NUMBER]),
         "outcome": Maybe(_OUTCOME), "checks": Maybe([_CHECK | {"interval": Maybe([NUMBER])}]), "chance": Maybe(TEXT), "why": Maybe(TEXT)}  # fmt: skip
_CLOSED_FORM = {key: NUMBER for key in ("decodes", "context", "attention_s", "ffn_s", "way_s", "balance", "micro_batches_asked", "attention_bubble",
                                        "ffn_bubble")}  # fmt: skip
_APART = _PLAN | {"closed_form": Maybe(_CLOSED_FORM)}
_POINT = {"shape": NUMBER, "words": TEXT, "batch": NUMBER, "ttft_s": NUMBER, "tpot_s": POSITIVE, "is_front": FLAG,
          "tokens_per_s_per_user": NUMBER, "tokens_per_s_per_gpu": NUMBER, "usd_per_million_output_tokens": Maybe(NUMBER),
          "j_per_output_token": Maybe(NUMBER), "is_simulated": Maybe(FLAG)}  # fmt: skip
_VARIATION = {"what": TEXT, "factor": NUMBER, "value": NUMBER, "num_gpus": Maybe(NUMBER), "why": TEXT}
_ANSWER = {
    "question": TEXT, "is_met": FLAG, "is_open": FLAG, "offered_requests_per_s": NUMBER, "slo": [{"name": TEXT, "limit": POSITIVE, "at_most": FLAG}],
    "space": {"plans": NUMBER, "shapes": NUMBER, "combinations": NUMBER, "impossible": NUMBER, "simulated": {"short": NUMBER, "full": NUMBER},
              "left_out": [{"reason": TEXT, "count": NUMBER, "example": TEXT}]},
    "saturation": Maybe({"load": NUMBER, "low": NUMBER, "high": NUMBER, "seeds": NUMBER,
                         "above": Maybe({"load": Maybe({"limit": Maybe(TEXT)}), "slo": Maybe([_CHECK])})}),
    "limits": Maybe([{"what": TEXT, "gain": SIGNED}]), "fronts": [_POINT],
    "load_curve": Maybe([{"requests_per_s": NUMBER, "of_highest": NUMBER, "outcome": _OUTCOME}]),
    "one_less": Maybe({"plan": TEXT, "outcome": _OUTCOME}),
    "sensitivity": Maybe({"variations": [_VARIATION], "left_out": [TEXT]}),
    "basis": Maybe({key: Maybe(NUMBER) for key in (
        "usd_per_hour", "usd_per_kwh", "pue", "tdp_w", "seed", "energy_error", "energy_waiting_w", "energy_hbm_w", "energy_arithmetic_w")} | {key: Maybe(TEXT) for key in (
        "device", "provider", "engine", "price_source", "tdp_source", "energy_basis", "tables_device", "tables_source_repository", "tables_licence")}),
}  # fmt: skip
_MET = {"attention_ffn": Maybe({"best": Maybe(_APART), "others": [_APART], "together": Maybe(_PLAN)}), "best": _PLAN, "has_slo": FLAG, "equal": [_PLAN], "cheaper_maybe": [_PLAN], "runners_up": [_PLAN]}
_MISSED = {"nearest": _PLAN, "why": TEXT, "impossible_reasons": Each(NUMBER)}


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a directory holds: the answer, the table's header and rows as text, the question's and the scenario's YAML."""

    answer: dict[str, Any]
    columns: list[str]
    rows: list[list[str]]
    question: str
    scenario_text: str
    scenario: dict[str, Any]

    @property
    def plan(self) -> dict[str, Any]:
        """The best plan, or the nearest where none meets the SLO."""
        chosen: dict[str, Any] = self.answer["best" if self.answer["is_met"] else "nearest"]
        return chosen


def read(directory: pathlib.Path) -> Saved:
    """Raises ValueError naming the file and what it lacks, OSError for one that cannot be read."""
    answer = _answer(directory / "answer.json")
    columns, rows = _table(directory / "plans.csv")
    if len(rows) != answer["space"]["plans"]:
        raise ValueError(f"{directory / 'plans.csv'}: found {len(rows):,} plans, expected {answer['space']['plans']:,} as answer.json counts")
    scenario_text = _text(directory / "scenario.yaml")
    return Saved(answer, columns, rows, _text(directory / "question.yaml"), scenario_text,
                 resolved_scenario.parse(scenario_text, directory / "scenario.yaml"))  # fmt: skip


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path.parent}: no file {path.name}; expected a directory that 'orrery explore' wrote") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _answer(path: pathlib.Path) -> dict[str, Any]:
    try:
        answer = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}" if str(path) not in str(error) else str(error)) from None
    _check(path, "", answer, _ANSWER)
    _check(path, "", answer, _MET if answer["is_met"] else _MISSED)
    found: dict[str, Any] = answer
    return found


def _check(path: pathlib.Path, at: str, value: Any, shape: Any) -> None:
    """Raises ValueError for what is not of the shape; fills in what may be absent."""
    if isinstance(shape, Maybe):
        if value is None:
            return
        shape = shape.of
    if isinstance(shape, Served):
        shape = {"error": TEXT} if isinstance(value, dict) and value.get("error") else shape.of
    if isinstance(shape, str):
        if not _KINDS[shape](value):
            raise _refused(path, at, value, shape)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _refused(path, at, value, "a list")
        for i, item in enumerate(value):
            _check(path, f"{at}.{i}", item, shape[0])
    elif not isinstance(value, dict):
        raise _refused(path, at, value, "an object")
    elif isinstance(shape, Each):
        for key, item in value.items():
            _check(path, f"{at}.{key}", item, shape.of)
    else:
        for key, inner in shape.items():
            if isinstance(inner, Maybe) and value.get(key) is None:
                value[key] = [] if isinstance(inner.of, list) else None
            _check(path, f"{at}.{key}" if at else key, value.get(key), inner)


def _refused(path: pathlib.Path, at: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{path}: found {str(value)[:60]!r} as '{at or 'the whole'}', expected {expected} as 'orrery explore' writes it")


def _table(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    try:
        lines = list(csv.reader(io.StringIO(_text(path)), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    if not lines:
        raise ValueError(f"{path}: found nothing, expected a header and a line for each plan")
    columns, rows = lines[0], lines[1:]
    if missing := [name for name in PLAN_COLUMNS if name not in columns]:
        raise ValueError(f"{path}:1: no column {', '.join(missing)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise ValueError(f"{path}:{number}: found {len(row)} cells, expected {len(columns)} as in the header")
        for name in ("id", "shape"):
            if not row[columns.index(name)].isdecimal():
                raise ValueError(f"{path}:{number}: found '{row[columns.index(name)]}' in column '{name}', expected a number")
    return columns, rows
