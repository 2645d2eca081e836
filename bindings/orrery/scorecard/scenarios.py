"""The scenario of a published case, as YAML text."""

from __future__ import annotations

import collections
import csv
import functools
import json
import re

from ..simulation import project_root
from . import apart, drafts, lengths
from .cases import Case
from .rules import MACHINES, MODELS, not_simulated, settings

FORMATS = ("weights", "expert_weights", "activations", "kv_cache")
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "max_model_len",
          "enable_prefix_caching",
          "stream_interval", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", "cuda_graphs", "max_piece_tokens",
          "graph_batch_sizes")  # fmt: skip
DEFAULT_QUEUED = 1000  # requests of an "all queued" run whose source does not say how many
MOST_REQUESTS = 1_000_000  # of one case; published ones have up to 20,000
PROMPTS_PER_CLIENT = 10  # of a closed loop: InferenceX and the vLLM runs say 10 x C, others do not say


class CannotSimulate(Exception):
    """The case is well formed, and this simulator cannot run it; the message says why."""


def scenario_text(case: Case) -> str:
    """YAML of the case. Throws CannotSimulate."""
    fields = dict(case.fields)
    if fields["layout"] not in ("aggregated", "pd"):
        raise CannotSimulate(f"layout {fields['layout'] or 'not stated'}")
    if not fields["engine"]:
        raise CannotSimulate("engine not stated")
    model = fields["model_file"] or MODELS.get(fields["model"])
    if model is None:
        raise CannotSimulate(f"no model file for {fields['model']}")
    sides = apart.read(case) if fields["layout"] == "pd" else None
    if not fields["tp"] and not sides:
        raise CannotSimulate("parallelism not stated")
    if not fields["weights_dtype"]:
        raise CannotSimulate("weight format not stated")
    drafted = drafts.read(fields)
    if reason := not_simulated(fields) or (drafted.reason if drafted else ""):
        raise CannotSimulate(reason)
    prompt, output = _tokens(fields, "isl"), _tokens(fields, "osl")
    found = settings(fields)
    if "provider" not in found:
        raise CannotSimulate(f"no kernel tables for engine {fields['engine']}")
    if found["weights"] == "int8":
        raise CannotSimulate("weights of 8-bit integers: no such products are simulated")
    formats = "".join(f", {key}: {_quoted(found[key])}" for key in FORMATS if key in found)
    limits = "".join(f", {key}: {found[key]}" for key in LIMITS if key in found) + (f", speculative: {drafted.yaml()}" if drafted else "")
    repeats = _repeats(found)
    return (
        f"question: {_quoted(f'What does the published case {case.case_id} measure?')}\n"
        f"model: {{config: {_quoted(model)}{formats}}}\n"
        f"machine: {_machine(case, sum(side.num_gpus for side in sides) if sides else _gpus(case))}\n"
        f"provider: {_quoted(found['provider'])}\n"
        f"{_experts(found)}"
        f"{_placed(case, sides)}\n"
        f"engine: {{profile: {_quoted(found['profile'])}{limits}}}\n"
        f"workload: {_workload(case, prompt, output, found, repeats)}\n"
        "slo: {ttft: 2 s, tpot: 50 ms}\n"
    )


def _experts(found: dict[str, str]) -> str:
    """The kernels of routed experts that the script chose, where tables have rows of theirs."""
    backend = found.get("moe_backend")
    formats = backend_formats().get(backend, frozenset()) if backend else frozenset()
    return f"moe: {{backend: {backend}}}\n" if found.get("expert_weights", found["weights"]) in formats else ""


@functools.cache
def backend_formats() -> dict[str, frozenset[str]]:
    """By backend of routed experts the formats that some device's tables have rows of."""
    found = collections.defaultdict(set)
    for file in (project_root() / "topologies" / "devices").glob("*/*/backends.csv"):
        with file.open(newline="", encoding="utf-8") as handle:
            for row in csv.DictReader(handle):
                found[row["backend"]].add(row["dtype"])
    return {backend: frozenset(formats) for backend, formats in found.items()}


def _repeats(found: dict[str, str]) -> str:
    """Prompts that are sent again matter where the engine keeps them; distinct ones for all requests are none."""
    distinct, requests = found.get("distinct_prompts"), found.get("num_requests")
    if distinct is None or found.get("enable_prefix_caching") != "true" or (requests and int(requests) <= int(distinct)):
        return ""
    return f", distinct_prompts: {distinct}"


def _quoted(text: str) -> str:
    """As a scalar of YAML, whatever is in a cell: JSON's strings are among YAML's."""
    return json.dumps(text)


def _tokens(fields: dict[str, str], column: str) -> str:
    """Lengths of the column as a scenario has them."""
    if re.search("means of a data ?set", fields["notes"]):
        raise CannotSimulate("lengths are means of a data set, whose spread is not stated")
    found = lengths.read(fields[column])
    if found is None:
        raise CannotSimulate(
            "lengths are those of a data set" if "dataset" in fields[column] else "lengths not stated as numbers"
        )
    if fields["lengths"].startswith("uniform_0.8") and found.least == found.most > 1:
        found = lengths.Lengths(max(1, int(0.8 * found.most)), found.most)
    elif fields["lengths"] not in ("fixed", "see isl/osl/notes") and not (fields["lengths"] == "uniform" and _is_spread(fields)):
        raise CannotSimulate(f"length distribution '{fields['lengths']}'")
    return found.yaml()


def _is_spread(fields: dict[str, str]) -> bool:
    """Whether prompts or outputs are stated as a range."""
    found = [lengths.read(fields[name]) for name in ("isl", "osl")]
    return any(length is not None and length.least < length.most for length in found)


def _clients(fields: dict[str, str]) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", fields["load_value"]):
        raise CannotSimulate(f"{fields['load_kind']} load without a whole number of requests")
    return _bounded(fields["load_value"])


def _bounded(count: str) -> int:
    """A number of requests, as far as they are simulated."""
    if len(count) > 20 or int(count) > MOST_REQUESTS:
        raise CannotSimulate(f"{count[:20]} requests; at most {MOST_REQUESTS:,} of a case are simulated")
    return int(count)


def _machine(case: Case, gpus: int) -> str:
    key = case.fields["gpu_key"]
    if key not in MACHINES:
        raise CannotSimulate(f"no machine for GPU '{key}'")
    node, size, cluster = MACHINES[key]
    if gpus <= size:
        return node
    if cluster is None:
        raise CannotSimulate(f"no machine with {gpus} GPUs of kind '{key}'")
    nodes = -(-gpus // size)
    return f"{{name: {cluster}, num_gpus: {nodes * size}}}"


def _gpus(case: Case) -> int:
    return case.whole("tp", 1) * case.whole("pp", 1) * case.whole("attention_dp", 1) * case.whole("replicas", 1)


def _placed(case: Case, sides: tuple[apart.Side, apart.Side] | None) -> str:
    return f"disaggregation: {apart.placement(sides, case)}" if sides else f"placement: {_placement(case)}"


def _placement(case: Case) -> str:
    tp, dp, ep = case.whole("tp", 1), case.whole("attention_dp", 1), case.whole("moe_ep", 1)
    if case.fields["moe_tp"] and case.whole("moe_tp", 1) * ep != tp * dp:
        raise CannotSimulate("experts are on other GPUs than attention (MoE TP x EP is not TP x DP)")
    return f"{{replicas: {case.whole('replicas', 1)}, tp: {tp}, pp: {case.whole('pp', 1)}, dp: {dp}, ep: {ep}}}"


def _workload(case: Case, prompt: str, output: str, found: dict[str, str], repeats: str) -> str:
    fields = dict(case.fields)
    tokens = f"prompt_tokens: {prompt}, output_tokens: {output}"
    kind = fields["load_kind"]
    if kind == "closed_loop":
        clients = _clients(fields)
        count = _bounded(found["num_requests"]) if "num_requests" in found else num_requests(fields, PROMPTS_PER_CLIENT * clients)
        cold = ", cold: true" if found.get("warm_up") == "0" else ""
        return f"{{closed_loop: {{concurrency: {clients}, num_requests: {count}, {tokens}{repeats}{cold}}}}}"
    if kind == "static_batch":
        return f"{{static_batch: {{batch: {_clients(fields)}, {tokens}}}}}"
    if kind == "all_at_once":
        return f"{{offline: {{num_requests: {num_requests(fields, DEFAULT_QUEUED)}, {tokens}}}}}"
    if kind == "poisson":
        count = num_requests(fields, DEFAULT_QUEUED)
        return f"{{poisson: {{requests_per_s: {fields['load_value']}, num_requests: {count}, {tokens}}}}}"
    raise CannotSimulate("load not stated")


def num_requests(fields: dict[str, str], default: int) -> int:
    """Requests of the run: what the notes list for these lengths ("3000 (128/2048, 2048/128), ..."), else what
    they or the load column state ("500 requests", "80 prompts"), else `default`. Throws CannotSimulate."""
    wanted = f"{fields['isl']}/{fields['osl']}"
    for count, listed in re.findall(r"(\d+)(?: reqs)? \(([\d/, ]+)\)", fields["notes"]):
        if wanted in re.split(r", ?", listed):
            return _bounded(count)
    stated = re.search(
        r"(?<![\dx.])\b(\d+) (?:requests|prompts)\b", f"{fields['batch_or_concurrency']}; {fields['notes']}"
    )
    return _bounded(stated[1] if stated else str(default))
