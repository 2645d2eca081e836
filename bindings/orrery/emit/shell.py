"""A deployment as a shell script: `bash FILE` serves, `bash FILE bench` measures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from . import flags
from .benchmark import REQUESTS, Benchmark
from .deployment import FIRST_PORT, Deployment, Process, num_nodes, processes

_VARIABLE = re.compile(r"\$NODE_\d+")
_ADDRESS = re.compile(r"(?:http://)?\$NODE_\d+(?::\d+)?")
_SETUP = """set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
wait_for() { until curl -sf "$1/health" >/dev/null; do sleep 2; done; }
"""


def _pinned(name: str, package: str) -> tuple[str, ...]:
    return (f"pip install {package}=={flags.table(name).default}",)


_INSTALLED = {"vllm-router": _pinned("vllm_router", "vllm-router"), "python3": _pinned("sglang_router", "sglang-router")}


def script(deployment: Deployment, benchmark: Benchmark, header: Sequence[str]) -> str:
    """The whole script; `header` becomes comments at its top."""
    nodes = num_nodes(deployment)
    parts = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for line in header), _SETUP, _bench(benchmark)]
    every = processes(deployment)
    if nodes > 1:
        names = sorted({name for process in every for name in _VARIABLE.findall(" ".join((*process.words, process.address)))})
        parts.append("# Run this on every node, with NODE the number of the node and the nodes' addresses.")
        parts += [f': "${{{name[1:]}:?address of node {name[6:]}}}"' for name in names]
    for node in range(nodes):
        mine = [process for process in every if process.node == node]
        written: set[str] = set()
        lines = "\n\n".join(_started(process, every, written) for process in mine)
        if nodes > 1:
            lines = f'if [ "${{NODE:?number of this node, 0 to {nodes - 1}}}" = {node} ]; then\n{lines}\nfi'
        parts.append(lines + "\n")
    parts.append(f'echo "serving on port {FIRST_PORT}; Ctrl-C ends everything"\nwait')
    return "\n".join(parts) + "\n"


def _bench(benchmark: Benchmark) -> str:
    lines = ['if [ "${1:-serve}" = bench ]; then']
    first, *others = benchmark.commands
    reads = REQUESTS in first.words
    if reads:
        lines.append(f"  [ -f {REQUESTS} ] || {{ echo 'write {REQUESTS} first: see --requests at the top' >&2; exit 2; }}")
    lines.append(_indented(wrapped(first.words, {}), 2))
    for other in others:
        lines.append("  # or:")
        lines += [f"  # {line}" for line in wrapped(other.words, {}).splitlines()]
    return "\n".join([*lines, "  exit", "fi", ""])


def _started(process: Process, every: Sequence[Process], written: set[str]) -> str:
    lines = [f"# {process.name}"]
    if process.file and process.file[0] not in written:
        name, content = process.file
        written.add(name)
        lines.append(f"cat > {name} <<'YAML'\n{content}YAML")
    if process.name == "router":
        lines += [f"# {line}" for line in _INSTALLED.get(process.words[0], ())]
        lines += [f'wait_for "{server.address}"' for server in every if server.address and server is not process]
    env = dict(process.env)
    if process.gpus:
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, process.gpus)), **env}
    lines.append(f"{wrapped(process.words, env)} > {process.name}.log 2>&1 &")
    return "\n".join(lines)


def wrapped(words: Sequence[str], env: Mapping[str, str]) -> str:
    """A command, an option with its values on each line."""
    lines = [" ".join(f"{name}={shlex.quote(text)}" for name, text in env.items())] if env else []
    current: list[str] = []
    for word in words:
        is_option = word.startswith(("--", "-c")) and word not in ("-", "--")
        if is_option and current:
            lines.append(" ".join(current))
            current = []
        current.append(_quoted(word))
    lines.append(" ".join(current))
    return " \\\n  ".join(lines)


def _quoted(word: str) -> str:
    if _ADDRESS.fullmatch(word):
        return f'"{word}"'
    return shlex.quote(word)


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())


__all__ = ["script", "wrapped"]
