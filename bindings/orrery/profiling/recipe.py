"""Which few batches of an engine to trace for a scenario, and a script that traces them."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence

import numpy as np

from ..finished_run import FinishedRun

_TOKENS = 6  # of each traced request: its prompt and some decodes with all others
_UNTRACED_TOKENS = 32
_APART = 2.0  # contexts and prompts nearer than that to each other are one


@dataclasses.dataclass(frozen=True)
class Phase:
    """Requests of one length sent at once, so that steps with all of them follow."""

    decodes: int
    prompt: int

    @property
    def name(self) -> str:
        return f"b{self.decodes}_c{self.prompt}"


def phases_of(run: FinishedRun) -> list[Phase]:
    """Decodes in powers of two up to what the run has, at its usual context; few and many at short and long ones too; prompts alone."""
    steps = run.steps()
    decodes, context = np.asarray(steps["num_decodes"], float), np.asarray(steps["decode_context"], float)
    has = decodes > 0
    most = int(np.quantile(decodes[has], 0.99)) if has.any() else 1
    counts = [1 << power for power in range(max(math.ceil(math.log2(max(most, 1))), 0) + 1)]
    contexts = _spread(context[has] / decodes[has]) if has.any() else []
    prompts = _spread(np.asarray(run.measured["prompt_tokens"], float))
    usual = contexts[len(contexts) // 2] if contexts else prompts[len(prompts) // 2]
    found = [Phase(count, usual) for count in counts]
    found += [Phase(count, length) for length in contexts if length != usual for count in sorted({counts[0], counts[len(counts) // 2], counts[-1]})]
    found += [Phase(1, prompt) for prompt in prompts]
    return list(dict.fromkeys(found))


def _spread(values: np.ndarray) -> list[int]:
    """5, 50 and 95 % of them, without those too near to the one before."""
    found: list[int] = []
    for value in np.quantile(values, (0.05, 0.5, 0.95)):
        size = max(int(round(float(value))), 16)
        if not found or size > _APART * found[-1]:
            found.append(size)
    return found


def request_lines(phase: Phase, tokens: int) -> str:
    line = json.dumps({"start_s": 0.0, "prompt_tokens": phase.prompt, "output_tokens": tokens})
    return f"{line}\n" * phase.decodes


def files_of(phases: Sequence[Phase]) -> dict[str, str]:
    """What the script sends: a file for each phase, traced and not."""
    found = {}
    for phase in phases:
        found[f"requests/{phase.name}.jsonl"] = request_lines(phase, _TOKENS)
        found[f"requests/{phase.name}.untraced.jsonl"] = request_lines(phase, _UNTRACED_TOKENS)
    return found


def server_of(engine: str, model: str) -> str:
    """The command that starts the server so that it can be traced. Sources: docs.vllm.ai contributing/profiling (0.13 and later), SGLang's
    developer_guide/benchmark_and_profiling, Nsight Systems' user guide (nsys launch, start, stop)."""
    name = shlex.quote(model)
    if engine == "vllm":
        settings = '{"profiler": "torch", "torch_profiler_dir": "\'"$PWD"\'/traces", "torch_profiler_record_shapes": true, "torch_profiler_with_stack": false}'
        return f"vllm serve {name} --port 8000 --no-enable-prefix-caching --profiler-config '{settings}'"
    if engine == "sglang":
        return f'SGLANG_TORCH_PROFILER_DIR="$PWD/traces" python3 -m sglang.launch_server --model-path {name} --port 8000 --disable-radix-cache'
    if engine == "trtllm":
        return f"nsys launch --session-new=orrery --trace=cuda,nvtx --cuda-graph-trace=node trtllm-serve {name} --port 8000"
    return "transformers: no server; docs/tools/transformers_engine.py CONFIG.json -o DIR runs and traces it by itself"


_START = {
    "vllm": 'curl -sf -X POST "$URL/start_profile"',
    "sglang": """curl -sf -X POST "$URL/start_profile" -H 'Content-Type: application/json' -d '{"activities": ["CPU", "GPU"], "record_shapes": true}'""",
    "trtllm": 'nsys start --session=orrery --force-overwrite=true --output="traces/$1.nsys-rep"',
}
_STOP = {
    "vllm": 'curl -sf -X POST "$URL/stop_profile"',
    "sglang": 'curl -sf -X POST "$URL/stop_profile"',
    "trtllm": 'nsys stop --session=orrery && nsys export --type sqlite --force-overwrite=true --output "traces/$1.sqlite" "traces/$1.nsys-rep"',
}
_TRACES = {"vllm": "traces/*.pt.trace.json.gz", "sglang": "traces/*.trace.json.gz", "trtllm": "traces/*.sqlite"}


def script_of(engine: str, model: str, config: str, phases: Sequence[Phase]) -> str:
    """A shell script for a host with the server running and a client's Python: sends each phase once untraced, once traced, then imports."""
    names = " ".join(phase.name for phase in phases)
    return f"""#!/usr/bin/env bash
# Traces {len(phases)} batches of {engine} for Orrery. In another terminal of this folder, first:
#   {server_of(engine, model)}
set -euo pipefail
cd "$(dirname "$0")"
URL=${{URL:-http://127.0.0.1:8000}}
MODEL={shlex.quote(model)}
mkdir -p traces bench
start() {{ {_START[engine]}; }}
stop() {{ {_STOP[engine]}; }}
for phase in {names}; do
  python3 load.py "$URL" "requests/$phase.untraced.jsonl" --model "$MODEL" -o "bench/$phase.untraced.json"
  start "$phase"
  python3 load.py "$URL" "requests/$phase.jsonl" --model "$MODEL" -o "bench/$phase.json"
  stop "$phase"
done
echo "where orrery is installed: orrery import torch-profile {_TRACES[engine]} --engine {engine} --model {shlex.quote(config)} --requests bench/*[0-9].json"
"""


def text_of(engine: str, model: str, phases: Sequence[Phase], folder: str) -> str:
    """The recipe to read."""
    lines = [f"{len(phases)} batches for {engine}, {sum(phase.decodes for phase in phases)} requests of {_TOKENS} tokens traced and "
             f"{_UNTRACED_TOKENS} untraced:"]  # fmt: skip
    lines += [f"  {phase.decodes:4d} x {phase.prompt} tokens" for phase in phases]
    if engine == "transformers":
        cases = ",".join(f"{phase.decodes}x{phase.prompt}" for phase in phases)
        return "\n".join([*lines, f"run: python3 docs/tools/transformers_engine.py CONFIG.json -o DIR --traced {cases}"])
    lines += [
        "1. start the server:",
        f"   {server_of(engine, model)}",
        f"2. trace it: {folder}/trace.sh",
        "3. import what it wrote: trace.sh ends with the command",
    ]
    return "\n".join(lines)
