"""Checks the tables of options in bindings/orrery/emit/flags/ against the sources of the programs, without installing or running them.

    pip download --no-deps --only-binary :all: -d WHEELS vllm==0.24.0      # and so on: one wheel for each version of a table
    PYTHONPATH=bindings .venv/bin/python docs/tools/engine_flags.py WHEELS

The wheels are read, not imported: options are what the named modules pass to add_argument and its like, or what their classes of
arguments declare as fields; values are texts that stand anywhere in these modules. Of each option that orrery writes: it is there in
each version that the table says has it, and in none of the others; each value of a choice and each key of a setting is there from
its version on. Wheels that are not in the folder are said. Exits with 1 where a table is wrong.

Not read: llm-d's router (its guides are YAML) and TensorRT-LLM (no wheels on PyPI).
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import pathlib
import re
import sys
import zipfile
from collections.abc import Iterator

from orrery.emit import flags

OPTION = re.compile(r"--[A-Za-z0-9][\w-]*")


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where a program's options stand in its wheel."""

    package: str  # the wheel's name
    modules: tuple[str, ...]  # that declare options
    classes: tuple[str, ...] = ()  # whose fields are options, by these names
    values: tuple[str, ...] = ()  # further modules that name values


PROGRAMS = {
    "vllm": Sources("vllm", ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/openai/*/cli_args.py",
                             "vllm/entrypoints/cli/*.py", "vllm/entrypoints/*/cli_args.py"), ("*FrontendArgs",),
                    ("vllm/config/*.py", "vllm/model_executor/layers/quantization/__init__.py")),
    "vllm_bench": Sources("vllm", ("vllm/benchmarks/serve.py", "vllm/benchmarks/datasets.py", "vllm/benchmarks/datasets/*.py"),
                          values=("vllm/benchmarks/lib/*.py",)),
    "vllm_router": Sources("vllm_router", ("vllm_router/*.py",)),
    "sglang": Sources("sglang", ("sglang/srt/server_args.py",), ("ServerArgs",)),
    "sglang_bench": Sources("sglang", ("sglang/bench_serving.py", "sglang/benchmark/*.py", "sglang/benchmark/*/*.py")),
    "sglang_router": Sources("sglang_router", ("sglang_router/*.py",)),
    "aiperf": Sources("aiperf", ("aiperf/config/flags/*.py",), values=("aiperf/common/enums/*.py", "aiperf/plugin/*", "aiperf/*/*.py")),
    "guidellm": Sources("guidellm", ("guidellm/cli/run.py", "guidellm/schemas/benchmark/*.py"), values=("guidellm/schemas/*/*.py",)),
    "dynamo": Sources("ai_dynamo", ("dynamo/*/backend_args.py", "dynamo/common/configuration/*.py", "dynamo/common/configuration/groups/*.py"),
                      values=("dynamo/common/constants.py",)),
}  # fmt: skip


class Read:
    """What the modules of one wheel declare."""

    def __init__(self, wheel: pathlib.Path, sources: Sources) -> None:
        self.options: set[str] = set()
        self.texts: set[str] = set()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                declares = any(fnmatch.fnmatch(name, pattern) for pattern in sources.modules)
                if declares or any(fnmatch.fnmatch(name, pattern) for pattern in sources.values):
                    self._module(archive.read(name).decode("utf-8"), name, declares, sources.classes)

    def _module(self, text: str, name: str, declares: bool, classes: tuple[str, ...]) -> None:
        if not name.endswith(".py"):
            self.texts |= set(re.findall(r"[\w.-]+", text))
            return
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.texts.add(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.texts.add(node.target.id)
            if declares and isinstance(node, ast.Call):
                self.options |= set(_options_of(node))
            if declares and isinstance(node, ast.Dict):  # guidellm names options so in its schema
                pairs = zip(node.keys, node.values)
                self.options |= {f"--{value.value}" for key, value in pairs if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
                                 and key.value == "argument_alias"}  # fmt: skip
            if declares and isinstance(node, ast.ClassDef) and any(fnmatch.fnmatch(node.name, pattern) for pattern in classes):
                self.options |= {"--" + field.target.id.replace("_", "-") for field in node.body
                                 if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)}  # fmt: skip


def _options_of(call: ast.Call) -> Iterator[str]:
    """Texts such as --tp-size among the arguments of a call; of f"--{prefix}policy" what stands there without a prefix."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    for each in given:
        for node in ast.walk(each):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if OPTION.fullmatch(text):
                yield text


def problems(table: flags.Table, version: str, read: Read) -> Iterator[str]:
    """What the table says otherwise than the sources of that version."""
    for name, flag in table.flags.items():
        written = table.has(name, version)
        negated = name.startswith("--no-") and "--" + name.removeprefix("--no-") in read.options
        if written != (name in read.options or negated):
            yield f"{name} is {'missing' if written else 'there, though the table says it is not'}"
        if written:
            keys = [key for kind, own in flag.settings.items() for key in (kind, *own)]
            wanted = [value for value in flag.values if table.has(name, version, value)] + keys
            yield from (f"{name}: found no '{value}'" for value in wanted if value not in read.texts and value.lower() not in read.texts)


def main(folder: pathlib.Path) -> int:
    num_problems = 0
    for name, sources in PROGRAMS.items():
        table = flags.table(name)
        for version in table.versions:
            wheel = next(iter(sorted(folder.glob(f"{sources.package}-{version}-*.whl"))), None)
            if wheel is None:
                print(f"{table.program} {version}: no wheel, not checked")
                continue
            found = list(problems(table, version, Read(wheel, sources)))
            num_problems += len(found)
            count = sum(table.has(option, version) for option in table.flags)
            print(f"{table.program} {version}: {count} options checked, {len(table.flags) - count} that it has not, {len(found)} problems")
            for problem in found:
                print(f"    {problem}")
    return 1 if num_problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
