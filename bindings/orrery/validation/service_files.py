"""Requests and steps of a service, predicted and served on GPUs, held against the workload that both had.

A directory travels between hosts by hand. What was cut on the way is found by sums: the prompt and output tokens of the
requests are those that the steps computed.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

from . import typed_csv
from .typed_csv import duration, or_empty, seconds, share, whole

# What a service needs beside the steps; all of it is there, or none.
FILES = ("workload.csv", "serve.txt", "predicted/requests.csv", "predicted/serve_steps.csv", "predicted/summary.json")
_REQUEST = {
    "id": whole(0), "replica": whole(0, 1_000_000), "prompt_tokens": whole(1), "output_tokens": whole(1), "cached_tokens": whole(0),
    "num_preemptions": whole(0), "arrival_s": seconds, "first_scheduled_s": seconds, "first_token_s": seconds, "finish_s": seconds,
    "ttft_s": duration, "tpot_s": or_empty(duration), "e2e_s": duration,
}  # fmt: skip
_MOVED = {"decode_replica": or_empty(whole(-1, 1_000_000))} | dict.fromkeys(
    ("prefill_end_s", "transfer_start_s", "transfer_end_s", "decode_start_s", "second_token_s", "exposed_transfer_s"), or_empty(seconds))  # fmt: skip
_WORKLOAD = {"arrival_s": seconds, "prompt_tokens": whole(1), "output_tokens": whole(1)}
_ORDER = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")

Columns = Mapping[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Service:
    """Columns of requests.csv and serve_steps.csv, of steps with `waited_s` for blocks from a tier; an empty cell is NaN."""

    requests: Columns
    steps: Columns


@dataclasses.dataclass(frozen=True)
class Services:
    """What was predicted, what was served (None: nothing), how many requests come first that count for nothing."""

    predicted: Service
    measured: Service | None
    warmup_requests: int
    num_requests: int  # of the workload


def read(directory: pathlib.Path, *, is_complete: bool) -> Services | None:
    """The services of a validation, None where it has none; `is_complete`: the GPUs did not stop early.

    Raises ValueError naming the file that is missing, cut, or of another workload.
    """
    executed = directory / "executed"
    present = [name for name in FILES if (directory / name).is_file()]
    was_served = (executed / "requests.csv").is_file()
    if not present and not was_served:
        return None
    if absent := [name for name in FILES if name not in present]:
        beside = present[0] if present else "executed/requests.csv"
        raise ValueError(f"found no '{directory / absent[0]}' beside '{beside}'; the directory is not whole")
    workload = _columns(directory / "workload.csv", _WORKLOAD)
    num_requests = len(workload["arrival_s"])
    predicted = _service(directory / "predicted", workload, is_complete=True)
    if (found := len(predicted.requests["id"])) != num_requests:
        raise ValueError(f"{directory / 'predicted/requests.csv'}: found {found} requests; workload.csv has {num_requests}")
    return Services(
        predicted=predicted,
        measured=_service(executed, workload, is_complete=is_complete) if was_served else None,
        warmup_requests=_warmup(directory / "serve.txt", num_requests),
        num_requests=num_requests,
    )


def _warmup(path: pathlib.Path, num_requests: int) -> int:
    lines = dict(line.split(maxsplit=1) for line in typed_csv.read_text(path).splitlines() if len(line.split()) > 1)
    try:
        return whole(0, num_requests)(lines.get("warmup", ""))
    except ValueError as error:
        raise ValueError(f"{path}: warmup: found {typed_csv.shown(lines.get('warmup', ''))}, expected {error}") from None


def _service(folder: pathlib.Path, workload: Columns, *, is_complete: bool) -> Service:
    file = folder / "requests.csv"
    moved = _MOVED if "transfer_start_s" in typed_csv.header(file) else {}
    requests = _columns(file, _REQUEST | moved)
    for place in range(len(requests["id"])):
        _check_request(file, {name: of[place] for name, of in requests.items()}, workload)
    twice = [request for request, count in collections.Counter(requests["id"]).items() if count > 1]
    if twice:
        raise ValueError(f"{file}: request {twice[0]} is there {requests['id'].count(twice[0])} times")
    steps = folder / "serve_steps.csv"
    ranks = {"token_balance": share} if "token_balance" in typed_csv.header(steps) else {}
    columns = _columns(steps, _step_columns(workload) | ranks)
    service = Service(requests=requests, steps=columns | {"waited_s": _waits(folder, columns)})
    _check_sums(file, steps, service, is_complete=is_complete)
    return service


def _waits(folder: pathlib.Path, steps: Columns) -> list[float]:
    """Of each step, for how much of it layers waited for KV blocks from a tier: none where no tier was executed."""
    path = folder / "serve_host.csv"
    num_steps = len(steps["start_s"])
    if not (folder / "kv_tiers.csv").is_file() or not path.is_file():
        return [0.0] * num_steps
    waited_s = _columns(path, {"waited_s": seconds})["waited_s"]
    if len(waited_s) != num_steps:
        raise ValueError(f"{path}: found {len(waited_s)} steps; serve_steps.csv has {num_steps}: it is cut or of another run")
    for place, (wait, step) in enumerate(zip(waited_s, steps["duration_s"], strict=True)):
        if wait > step:
            raise ValueError(f"{path}: step {place} waited {wait:g} s of the {step:g} s that it took")
    return waited_s


def _step_columns(workload: Columns) -> typed_csv.Columns:
    """A step computes no more than the whole workload has."""
    num_requests = len(workload["arrival_s"])
    tokens = int(sum(workload["prompt_tokens"]) + sum(workload["output_tokens"]))
    return {
        "replica": whole(0, 1_000_000), "start_s": seconds, "duration_s": duration, "num_steps": whole(1, tokens),
        "prefill_tokens": whole(0, tokens), "num_prefills": whole(0, num_requests), "num_decodes": whole(0, num_requests),
        "decode_context": whole(0, tokens),
    }  # fmt: skip


def _check_request(file: pathlib.Path, request: Mapping[str, float], workload: Columns) -> None:
    """That a request is the workload's, and its times follow from each other."""
    place = int(request["id"])
    if place >= len(workload["arrival_s"]):
        raise ValueError(f"{file}: request {place} is not in workload.csv, which ends at {len(workload['arrival_s']) - 1}")
    for name in ("prompt_tokens", "output_tokens"):
        if request[name] != workload[name][place]:
            raise ValueError(
                f"{file}: request {place} has {request[name]:.0f} {name}; workload.csv has {workload[name][place]:.0f}: "
                "these results are of another workload"
            )
    if request["cached_tokens"] > request["prompt_tokens"]:
        raise ValueError(f"{file}: request {place} found {request['cached_tokens']:.0f} of {request['prompt_tokens']:.0f} prompt tokens")
    for before, after in zip(_ORDER, _ORDER[1:], strict=False):
        if request[after] < request[before] and not _is_near(request[before], request[after], request["finish_s"]):
            raise ValueError(f"{file}: request {place}: {after} {request[after]:g} is before {before} {request[before]:g}")
    decodes = request["output_tokens"] - 1
    follows = {
        "ttft_s": request["first_token_s"] - request["arrival_s"],
        "e2e_s": request["finish_s"] - request["arrival_s"],
        "tpot_s": (request["finish_s"] - request["first_token_s"]) / decodes if decodes else math.nan,
    }
    for name, value in follows.items():
        if not _is_near(request[name], value, request["finish_s"]):
            raise ValueError(f"{file}: request {place}: {name} is {request[name]:g}; by the request's other times it is {value:g}")


def _is_near(value: float, other: float, clock_s: float) -> bool:
    """Equal as far as differences of clocks of that size are; NaN is near NaN alone."""
    return value == other or (value != value and other != other) or abs(value - other) <= 1e-6 + 1e-12 * clock_s


def _check_sums(file: pathlib.Path, steps_file: pathlib.Path, service: Service, *, is_complete: bool) -> None:
    """That the steps computed the tokens of the requests.

    A preempted request computes its tokens again, and one of them as the end of a prompt; of a service that was stopped,
    steps are there of requests that had not finished.
    """
    requests, steps = service.requests, service.steps
    if not requests["id"]:
        raise ValueError(f"{file}: holds no request")
    preemptions = sum(requests["num_preemptions"])
    of_requests = {
        "prompt": sum(requests["prompt_tokens"]) - sum(requests["cached_tokens"]),
        "decoded": sum(requests["output_tokens"]) - len(requests["output_tokens"]) - preemptions,
    }
    of_steps = {
        "prompt": _total(steps["prefill_tokens"], steps["num_steps"]),
        "decoded": _total(steps["num_decodes"], steps["num_steps"]),
    }
    for kind, expected in of_requests.items():
        found = of_steps[kind]
        if found < expected:
            raise ValueError(
                f"{steps_file}: its steps computed {found:.0f} {kind} tokens, the requests of requests.csv need {expected:.0f}: it is cut"
            )
        if found > expected and is_complete and not preemptions:
            raise ValueError(
                f"{file}: its requests need {expected:.0f} {kind} tokens, the steps of {steps_file.name} computed {found:.0f}: it is cut"
            )


def _total(values: Sequence[float], counts: Sequence[float]) -> float:
    return sum(value * count for value, count in zip(values, counts, strict=True))


def _columns(path: pathlib.Path, columns: typed_csv.Columns) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in columns}
    for _, row in typed_csv.rows(path, columns):
        for name, value in row.items():
            found[name].append(value)
    return found


__all__ = ["FILES", "Service", "Services", "read"]
