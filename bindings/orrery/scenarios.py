"""Scenarios: questions about serving a model, read from files and text or built and varied in code.

    scenario = orrery.Scenario(
        model={"config": "llama-3.1-70b", "weights": "fp8", "activations": "fp8"},
        machine="hgx-h200",
        provider="vllm-0.24.0",
        placement={"replicas": 2, "tp": 4},
        workload=frame,  # columns arrival_s, prompt_tokens, output_tokens
        slo={"ttft": "1 s", "tpot": "40 ms"},
    )
    wider = scenario.replace(placement__tp=8, placement__replicas=1)

The sections and keys are those of a scenario file, and one reader checks both.
"""

from __future__ import annotations

import collections.abc
import copy
import difflib
import json
import os
import pathlib
from typing import Any, Self

from . import _core, notebook
from .caching import cached_property
from .requests import is_frame, requests_of, scenario_error

Fields = dict[str, Any]
Overrides = collections.abc.Iterable[str] | collections.abc.Mapping[str, Any]
SCHEMAS = {"scenario": "scenario", "machine": "machine", "engine": "engine_profile"}  # kinds of files, and their section of the tables
_SHORT = {"model": "config", "machine": "name"}  # a text stands for a mapping with this key alone


def project_root() -> pathlib.Path:
    """Directory with models/, topologies/, scenarios/ and data/: ORRERY_ROOT, an installed package's
    own copy, or the checkout that this package lies in."""
    if root := os.environ.get("ORRERY_ROOT"):
        return pathlib.Path(root)
    package = pathlib.Path(__file__).resolve().parent
    share = package / "share"
    return share if share.is_dir() else package.parents[1]


def shipped_scenarios() -> dict[str, pathlib.Path]:
    """The project's own scenarios by name: 'quickstart', 'explore/llama_70b_chat'."""
    root = project_root() / "scenarios"
    files = sorted(file for file in root.rglob("*.yaml") if file.relative_to(root).parts[0] != "engines")
    return {str(file.relative_to(root).with_suffix("")): file for file in files}


class Scenario(_core.Scenario):
    """A question about serving a model, checked and resolved; it does not change.

    The arguments are the sections of a scenario file. `model` and `machine` may be a name, `workload` a table of
    requests: a data frame (pandas, Polars, Arrow, or what else gives `__arrow_c_stream__`), a structured array, a
    mapping of arrays or a list of mappings, with the columns

    - `arrival_s`, ascending seconds, or times (datetime64, timedelta64); the first request arrives at 0,
    - `prompt_tokens` and `output_tokens`, whole numbers of at least 1.

    `{"requests": table, "rate_scale": 2, "num_requests": 1000, "warmup_requests": 10}` takes the first thousand of it
    twice as fast. A section that is None is left out; without `provider` the newest measured kernels of the engine on the
    machine's device are taken. `name` is what results call the scenario. Relative paths start in the current directory,
    else at `project_root()`.

    Raises ScenarioError whose message names the key ("placement.tp: found '3'; ...") and the nearest known one.

    Scenarios are equal when all that they ask is equal, and hash by it; the name does not count. Pickled, they carry
    requests that are in memory; the files that they name are read again where they are unpickled.
    """

    _fields: Fields
    _directory: str
    _requests: _core.Requests | None

    def __init__(
        self,
        *,
        model: str | collections.abc.Mapping[str, Any],
        workload: Any,
        machine: str | collections.abc.Mapping[str, Any] | None = None,
        provider: str | os.PathLike[str] | None = None,
        placement: collections.abc.Mapping[str, Any] | None = None,
        disaggregation: collections.abc.Mapping[str, Any] | None = None,
        engine: collections.abc.Mapping[str, Any] | None = None,
        moe: collections.abc.Mapping[str, Any] | None = None,
        router: str | None = None,
        slo: collections.abc.Mapping[str, Any] | None = None,
        step_level: str | None = None,
        chosen_step: collections.abc.Mapping[str, Any] | None = None,
        seed: int | None = None,
        question: str | None = None,
        name: str = "scenario",
        **sections: Any,
    ) -> None:
        given = {
            "question": question, "model": model, "machine": machine, "provider": provider, "placement": placement,
            "disaggregation": disaggregation, "engine": engine, "moe": moe, "router": router, "workload": workload,
            "slo": slo, "step_level": step_level, "chosen_step": chosen_step, "seed": seed, **sections,
        }  # fmt: skip
        self._build({key: value for key, value in given.items() if value is not None}, name, os.getcwd(), None)

    @classmethod
    def from_dict(
        cls,
        fields: collections.abc.Mapping[str, Any],
        *,
        name: str = "scenario",
        directory: str | os.PathLike[str] = ".",
    ) -> Self:
        """Scenario of the nested mappings of a scenario file; values as in `Scenario(...)`.

        Relative paths start in `directory`. Raises ScenarioError.
        """
        if not isinstance(fields, collections.abc.Mapping):
            raise scenario_error(f"found a {type(fields).__name__}; expected a mapping of the sections of a scenario")
        scenario = cls.__new__(cls)
        scenario._build(dict(fields), name, os.path.abspath(directory), None)
        return scenario

    @classmethod
    def from_yaml(
        cls,
        text: str,
        *,
        name: str = "scenario",
        directory: str | os.PathLike[str] = ".",
        overrides: Overrides = (),
    ) -> Self:
        """Scenario of YAML text; relative paths start in `directory`, `overrides` are as in `load`.

        Raises ScenarioError with line and column in "<text>".
        """
        assignments = _assignments(overrides)
        _check_text(text, *assignments)
        return cls._of_node(_core.YamlNode.parse(text, "<text>"), name, os.path.abspath(directory), assignments)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, overrides: Overrides = ()) -> Self:
        """Scenario of a YAML file, or of a shipped one by its name ("quickstart") where there is no such file.

        `overrides` replace values of the file: "key.path=value" texts, or a mapping of key paths to values. Raises
        ScenarioError with file, line and column, and ValueError for text that cannot be written in UTF-8.
        """
        assignments = _assignments(overrides)
        _check_text(os.fspath(path), *assignments)
        file = pathlib.Path(path)
        if not file.suffix and not file.exists():
            file = _shipped(file)
        node = _core.YamlNode.read(os.fspath(file))
        return cls._of_node(node, file.stem, os.path.abspath(file.parent), assignments)

    @classmethod
    def _of_node(cls, node: _core.YamlNode, name: str, directory: str, overrides: list[str]) -> Self:
        for assignment in overrides:
            node.set(assignment)
        scenario = cls.__new__(cls)
        scenario._read(node, node.to_object(), name, directory, None)
        return scenario

    def _build(self, fields: Fields, name: str, directory: str, requests: _core.Requests | None) -> None:
        """Reads `fields`, whose workload may be a table; `requests` are those of one that is {requests: None}."""
        for section, key in _SHORT.items():
            if isinstance(value := fields.get(section), str | os.PathLike):
                fields[section] = {key: os.fspath(value)}
        workload = fields.get("workload")
        if is_frame(workload):
            workload = {"requests": workload}
        if isinstance(workload, collections.abc.Mapping) and "requests" in workload:
            if workload["requests"] is not None:
                requests = requests_of(workload["requests"])
            fields["workload"] = {**workload, "requests": None}
        else:
            requests = None
        node = _core.YamlNode.of(fields)
        self._read(node, node.to_object(), name, directory, requests)

    def _read(
        self, node: _core.YamlNode, fields: Fields, name: str, directory: str, requests: _core.Requests | None
    ) -> None:
        _core.Scenario.__init__(
            self, node, name=name, directory=directory, project=str(project_root()), requests=requests
        )
        self._fields, self._directory, self._requests = fields, directory, requests

    def replace(
        self, changes: collections.abc.Mapping[str, Any] | None = None, /, *, name: str | None = None, **named: Any
    ) -> Self:
        """A scenario that differs in some values.

        A name with double underscores is a path: `replace(placement__tp=4)`, also written
        `replace({"placement.tp": 4})`. None takes a key out: `replace(placement=None, disaggregation={...})`.
        Raises ScenarioError, as does the nearest known name where a key is unknown.
        """
        fields = copy.deepcopy(self._fields)
        for path, value in {**(changes or {}), **named}.items():
            _set(fields, path.replace("__", "."), value)
        scenario = type(self).__new__(type(self))
        scenario._build(fields, self.name if name is None else name, self._directory, self._requests)
        return scenario

    def to_dict(self, *, resolved: bool = False) -> Fields:
        """Nested dicts, of which `from_dict` makes an equal scenario.

        What was written, or with `resolved` every default spelled out. A table of requests is one array per column.
        """
        fields = copy.deepcopy(self._fields)
        if resolved:
            fields = _core.YamlNode.parse(super().to_yaml("-"), "<text>").to_object()
        if self._requests is not None:
            kept = {key: fields["workload"][key] for key in ("warmup_requests", "drain_requests") if key in fields["workload"]}
            fields["workload"] = {**self._fields["workload"], **kept, "requests": self._requests.columns()}
        return fields

    def to_yaml(self, requests_file: str = "", *, resolved: bool = True) -> str:
        """YAML text that reads as an equal scenario: every default spelled out, else what was written.

        Requests in memory are written out, or as the trace in `requests_file` where it is named.
        """
        if resolved:
            return super().to_yaml(requests_file)
        return _core.YamlNode.of(self.to_dict()).to_text()

    @cached_property
    def _resolved(self) -> str:
        return super().to_yaml("")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scenario):
            return super().__eq__(other)
        return self is other or self._resolved == other._resolved

    def __hash__(self) -> int:
        return hash(self._resolved)

    def __reduce__(self) -> tuple[Any, ...]:
        columns = None if self._requests is None else self._requests.columns()
        return _unpickled, (type(self), self._fields, self.name, self._directory, columns)

    def _repr_html_(self) -> str:
        return notebook.scenario_html(self)


def _shipped(name: pathlib.Path) -> pathlib.Path:
    """The file of the shipped scenario of that name. Raises ScenarioError with the nearest one where there is none."""
    shipped = shipped_scenarios()
    if found := shipped.get(name.as_posix()):
        return found
    near = difflib.get_close_matches(name.as_posix(), shipped, n=1, cutoff=0)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    raise scenario_error(f"{name}: no such file, nor a scenario of that name{meant}")


def _assignments(overrides: Overrides) -> list[str]:
    """Overrides as texts; JSON of a value is YAML."""
    if not isinstance(overrides, collections.abc.Mapping):
        return list(overrides)
    return [f"{path}={json.dumps(value, default=os.fspath, ensure_ascii=False)}" for path, value in overrides.items()]


def schema(of: str = "scenario") -> dict[str, Any]:
    """JSON Schema (draft 7) of scenario, machine or engine profile files (`engine`), from the tables that their readers take keys from.

    Raises ValueError for another kind of file.
    """
    if of not in SCHEMAS:
        raise ValueError(f"found no schema of '{of}'; expected one of {', '.join(SCHEMAS)}")
    made: dict[str, Any] = json.loads(_core.json_schema(SCHEMAS[of]))
    return made


def load(path: str | os.PathLike[str], *, overrides: Overrides = ()) -> Scenario:
    """Scenario of a YAML file, or of a shipped one by its name ("quickstart") where there is no such file.

    `overrides` replace values of the file: "key.path=value" texts, or a mapping of key paths to values. Raises
    ScenarioError with file, line and column, and ValueError for text that cannot be written in UTF-8.
    """
    return Scenario.from_file(path, overrides=overrides)


def _unpickled(
    kind: type[Scenario], fields: Fields, name: str, directory: str, columns: dict[str, Any] | None
) -> Scenario:
    scenario = kind.__new__(kind)
    scenario._build(fields, name, directory, None if columns is None else _core.Requests(**columns))
    return scenario


def _set(fields: Fields, path: str, value: Any) -> None:
    """Sets the value at a dotted path, making mappings on the way; None takes it out."""
    *parents, key = path.split(".")
    for depth, name in enumerate(parents, start=1):
        inner = fields.get(name)
        if isinstance(inner, str) and depth == 1 and name in _SHORT:
            inner = fields[name] = {_SHORT[name]: inner}
        if inner is not None and not isinstance(inner, dict):
            found = "a list" if isinstance(inner, list) else repr(inner)
            raise scenario_error(f"{path}: {'.'.join(parents[:depth])} is {found}; expected a mapping to set a key in")
        fields = fields.setdefault(name, {}) if inner is None else inner
    if value is None:
        fields.pop(key, None)
    else:
        fields[key] = value


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{ascii(text)}: found bytes that are no UTF-8; expected text in UTF-8") from None


__all__ = ["SCHEMAS", "Scenario", "load", "project_root", "schema"]
