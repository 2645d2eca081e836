"""What is asked: the YAML of a scenario with a `search` section, from a file or from options."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import pathlib
import re
from typing import Any

from .. import _core
from ..simulation import project_root

_LEAST_REQUESTS = 1000
_LEAST_SECONDS = 60  # of traffic that a one-line question simulates
_MOST_GPUS = 64  # where a one-line question does not say
_PROFILES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
_OUTCOMES = "with p95"  # what an outcome has; stores of others are not read
SPACE_KEYS = ("gpus", "placement", "disaggregation")


@dataclasses.dataclass(frozen=True)
class Question:
    """A scenario with a search section as YAML text. `file` names it in errors; its relative paths are from there."""

    text: str
    file: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return pathlib.Path(self.file).stem

    def digest(self) -> str:
        """Of all that the answer depends on but the machine's and the models' files."""
        parts = [_core.__version__, _OUTCOMES, self.text, str(pathlib.Path(self.file).resolve().parent), *self.overrides]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def space(self, threads: int = 1) -> _core.Space:
        """The plans that may be taken, whatever the threads. Raises ScenarioError."""
        return _core.Space(self.text, self.file, str(project_root()), list(self.overrides), threads)


def from_file(file: pathlib.Path, overrides: tuple[str, ...] = ()) -> Question:
    """The question of a scenario file. Raises OSError, ScenarioError for what is no UTF-8."""
    data = file.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: found bytes that are no UTF-8 at {error.start}; expected a scenario") from None
    return Question(text, str(file), overrides)


def from_options(options: Any) -> Question:
    """The question of a command line without a file. Raises ValueError for what it lacks."""
    missing = [f"--{name}" for name in ("model", "prompt", "output") if getattr(options, name) is None]
    if options.rate is None and options.concurrency is None:
        missing.append("--rate (or --concurrency)")
    if missing:
        raise ValueError(f"found neither a file nor {', '.join(missing)}; expected a scenario with a search section, or at least"
                         " --model, --gpu, --rate, --prompt and --output")  # fmt: skip
    machine = _machine(options)
    provider = options.provider or _provider(machine, options.engine)
    gpus = options.gpus or f"1..{min(_MOST_GPUS, machine['num_gpus'])}"
    if not re.fullmatch(r"\d+(\.\.\d+)?", gpus):
        raise ValueError(f"--gpus: found '{gpus}'; expected a number such as 32, or a range such as 8..64")
    most = int(gpus.rpartition("..")[2])
    fixed = machine["kind"] not in ("rail_fat_tree", "nvl72")
    size = f"{{name: {machine['name']}}}" if fixed else f"{{name: {machine['name']}, num_gpus: {_whole_nodes(most, machine)}}}"
    search: dict[str, Any] = {"gpus": gpus if ".." in gpus else f"1..{gpus}"}
    if options.placement != "disaggregated":
        search["placement"] = "auto"
    if options.placement != "aggregated":
        search["disaggregation"] = {"prefill": "auto", "decode": "auto"}
    lines = [
        f"question: {json.dumps(_words(options, machine))}",
        f"model: {{config: {json.dumps(options.model)}{_formats(options)}}}",
        f"machine: {size}",
        f"provider: {json.dumps(provider)}",
        f"engine: {{profile: {_PROFILES[options.engine]}}}",
        f"workload: {{{_workload(options)}}}",
        *_slo(options),
        *_costs(options),
        f"search: {json.dumps(search)}",
        "",
    ]
    return Question("\n".join(lines), f"{_slug(options.model)}.yaml")


def _machines() -> list[dict[str, Any]]:
    topologies = project_root() / "topologies"
    names = _core.machine_names(str(topologies))
    return [_core.machine_summary(str(topologies / f"{name}.yaml"), str(topologies)) for name in names]


def _machine(options: Any) -> dict[str, Any]:
    """The machine named, else one of the GPU named that has any number of nodes, else one node."""
    machines = _machines()
    if options.machine:
        for machine in machines:
            if machine["name"] == options.machine:
                return machine
        path = pathlib.Path(options.machine)
        if path.is_file():
            return _core.machine_summary(str(path), str(project_root() / "topologies")) | {"name": json.dumps(str(path.resolve()))}
        names = [m["name"] for m in machines]
        raise ValueError(f"--machine: found '{options.machine}'{_near(options.machine, names)} Expected a machine's file, or one of {', '.join(names)}")
    if not options.gpu:
        raise ValueError("found no --gpu; expected a device such as h200-sxm, or --machine")
    fitting = [m for m in machines if m["device"] == options.gpu]
    if not fitting:
        devices = sorted({m["device"] for m in machines})
        if (project_root() / "topologies" / "devices" / options.gpu / "device.yaml").is_file():
            raise ValueError(f"--gpu: found no machine of {options.gpu}; write one with 'orrery new machine NAME --device {options.gpu}', then"
                             " --machine NAME.yaml")  # fmt: skip
        raise ValueError(f"--gpu: found '{options.gpu}'{_near(options.gpu, devices)} Expected one of {', '.join(devices)}")
    return max(fitting, key=lambda m: (m["kind"] in ("rail_fat_tree", "nvl72"), m["num_gpus"]))


def _near(found: str, names: list[str]) -> str:
    near = [name for name in names if name.startswith(found)] or difflib.get_close_matches(found, names, n=1, cutoff=0)
    return f"; did you mean '{near[0]}'?" if near else "."


def _whole_nodes(gpus: int, machine: dict[str, Any]) -> int:
    node = machine["gpus_per_node"]
    return -(-gpus // node) * node


def _provider(machine: dict[str, Any], engine: str) -> str:
    """The newest version of the engine that is measured on the machine's device."""
    own = [p for p in machine["providers"] if p.partition("-")[0] == engine]
    if not own:
        own = [p for p in machine["usable_providers"] if p.partition("-")[0] == engine]
    if not own:
        raise ValueError(f"no kernels of {engine} are measured on {machine['device']} or its like; --provider none takes rooflines")
    return max(own, key=lambda p: [int(n) for n in re.findall(r"\d+", p.partition("-")[2])])


def _formats(options: Any) -> str:
    formats = {"weights": options.weights, "activations": options.activations, "kv_cache": options.kv_cache}
    if formats["activations"] is None and formats["weights"] in ("fp8", "fp8_block"):
        formats["activations"] = formats["weights"]
    return "".join(f", {key}: {value}" for key, value in formats.items() if value)


def _workload(options: Any) -> str:
    lengths = f"prompt_tokens: {_lengths(options.prompt, '--prompt')}, output_tokens: {_lengths(options.output, '--output')}"
    if options.rate is not None:
        count = options.requests or max(_LEAST_REQUESTS, round(_LEAST_SECONDS * options.rate))
        burst = f"gamma: {{cv: {options.burstiness}, " if options.burstiness != 1 else "poisson: {"
        return f"{burst}requests_per_s: {options.rate}, num_requests: {count}, {lengths}}}"
    count = options.requests or max(_LEAST_REQUESTS, 4 * options.concurrency)
    return f"closed_loop: {{concurrency: {options.concurrency}, num_requests: {count}, {lengths}}}"


def _lengths(text: str, option: str) -> str:
    """'2000', or 'mean=2000,cv=1,max=16384' as a scenario writes them."""
    if re.fullmatch(r"\d+", text):
        return text
    parts = [part.partition("=") for part in text.split(",")]
    if not all(key and equals and value for key, equals, value in parts):
        raise ValueError(f"{option}: found '{text}'; expected tokens such as 2000, or mean=2000,cv=1,max=16384")
    return "{" + ", ".join(f"{key}: {value}" for key, _, value in parts) + "}"


def _slo(options: Any) -> list[str]:
    limits = {}
    for metric in ("ttft", "tpot", "e2e"):
        for text in getattr(options, metric) or []:
            name, equals, value = text.partition("=")
            name, value = (name, value) if equals else ("each", text)
            if not re.fullmatch(r"[0-9.]+ ?(us|ms|s|min)", value):
                raise ValueError(f"--{metric}: found '{text}'; expected a time such as 1s for each request, or p99=1s, mean=300ms")
            limits.setdefault(metric, {})[name] = re.sub(r"([0-9.]) ?([a-z])", r"\1 \2", value)
    if options.attainment is not None:
        limits["attainment"] = options.attainment
    return [f"slo: {json.dumps(limits)}"] if limits else []


def _costs(options: Any) -> list[str]:
    given = {key: value for key in ("usd_per_gpu_hour", "usd_per_kwh", "pue") if (value := getattr(options, key, None)) is not None}
    return [f"cost: {json.dumps(given)}"] if given else []


def _words(options: Any, machine: dict[str, Any]) -> str:
    load = f"{options.rate:g} requests/s" if options.rate is not None else f"{options.concurrency} clients"
    limits = [f"{metric.upper()} {text.replace('=', ' < ') if '=' in text else '< ' + text}"
              for metric in ("ttft", "tpot", "e2e") for text in getattr(options, metric) or []]  # fmt: skip
    weights = f" {options.weights}" if options.weights else ""
    return f"Which plan serves {options.model}{weights} at {load} of {options.prompt}/{options.output} tokens on {machine['device']}" + (
        f" with {', '.join(limits)}?" if limits else "?")  # fmt: skip


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", pathlib.PurePath(text).name).strip("-") or "question"
