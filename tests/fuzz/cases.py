"""What the fuzzer runs: files and arguments, each drawn from the seed and its number alone."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from typing import Any

import forked
import invariants
import mutations
import services

SECONDS = 25
LONGEST_MESSAGE = 5000
COMMAND = ["run", "case.yaml", "-o", "out", "--no-report"]
MODELS = ("meta-llama--Meta-Llama-3.1-8B", "Qwen--Qwen3-30B-A3B", "deepseek-ai--DeepSeek-V2-Lite", "openai--gpt-oss-20b",
          "deepseek-ai--DeepSeek-V3.2", "Qwen--Qwen3-32B-FP8")  # fmt: skip
MACHINES = ("hgx-h200", "h200-cluster", "gb200-nvl72", "mi300x-node", "single-h200")


@dataclasses.dataclass(frozen=True)
class Case:
    """`files` by their names; bytes are kept as the Latin-1 text of the same values, so that JSON can hold them."""

    kind: str
    number: int
    seed: int
    files: dict[str, str]
    arguments: list[str]

    @staticmethod
    def read(file: pathlib.Path) -> Case:
        return Case(**json.loads(file.read_text(encoding="utf-8")))

    def write(self, directory: pathlib.Path) -> pathlib.Path:
        """Everything needed to repeat it."""
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{self.kind}-{self.seed}-{self.number}.json"
        file.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        return file


def _small(rng: random.Random) -> services.Tree:
    """A service of a fraction of a second, to be damaged."""
    scenario = services.service(rng, largest=400)
    scenario.pop("step_level", None)
    scenario["workload"] = services.workload(rng, num_requests=rng.randint(2, 10), largest=200)
    return scenario


def _scenario(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    return {"case.yaml": services.yaml_of(mutations.tree(rng, _small(rng)))}, []


def _scenario_text(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    return {"case.yaml": mutations.text(rng, services.yaml_of(_small(rng)).encode()).decode("latin-1")}, []


def _overrides(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    scenario = _small(rng)
    words = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        changed = services.service(rng) if rng.random() < 0.3 else mutations.tree(rng, scenario)
        key = rng.choice(list(changed) or ["seed"])
        value = changed.get(key)
        while isinstance(value, dict) and value and rng.random() < 0.7:
            inner = rng.choice(list(value))
            key, value = f"{key}.{inner}", value[inner]
        text = rng.choice((*mutations.NUMBERS, *mutations.WORDS)) if rng.random() < 0.3 else json.dumps(value)
        # Arguments of a program hold no zero bytes.
        words += ["--set", f"{key}={text}".replace("\x00", "")]
    return {"case.yaml": services.yaml_of(scenario)}, words


def _model(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    config = (forked.ROOT / "models" / f"{rng.choice(MODELS)}.config.json").read_text(encoding="utf-8")
    if rng.random() < 0.7:
        text = json.dumps(mutations.tree(rng, json.loads(config)))
    else:
        text = mutations.text(rng, config.encode()).decode("latin-1")
    scenario = _small(rng) | {"model": {"config": "model.json"}, "provider": rng.choice(services.PROVIDERS)}
    return {"case.yaml": services.yaml_of(scenario), "model.json": text}, []


def _machine(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    name = rng.choice(MACHINES)
    original = (forked.ROOT / "topologies" / f"{name}.yaml").read_bytes()
    scenario = _small(rng) | {"machine": "machine.yaml", "provider": rng.choice(("none", "vllm-0.24.0")) if "h200" in name else "none"}
    return {"case.yaml": services.yaml_of(scenario), "machine.yaml": mutations.text(rng, original).decode("latin-1")}, []


def _profile(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    # Some extend others, which lie beside them.
    files = {f"{name}.yaml": (forked.ROOT / "scenarios" / "engines" / f"{name}.yaml").read_bytes() for name in services.PROFILES}
    damaged = mutations.text(rng, rng.choice(list(files.values())))
    files["profile.yaml"] = damaged
    scenario = _small(rng) | {"engine": {"profile": "profile.yaml"}}
    return {"case.yaml": services.yaml_of(scenario)} | {name: text.decode("latin-1") for name, text in files.items()}, []


def _with_trace(rng: random.Random, key: str, name: str, text: str) -> tuple[dict[str, str], list[str]]:
    workload: dict[str, Any] = {key: name}
    if rng.random() < 0.3:
        workload["rate_scale"] = rng.choice((0.001, 2, 1e6))
    if rng.random() < 0.3:
        workload["num_requests"] = rng.randint(1, 30)
    scenario = _small(rng) | {"workload": workload}
    return {"case.yaml": services.yaml_of(scenario), name: text}, []


def _csv(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    original = services.csv_trace(rng, num_requests=rng.randint(1, 20), largest=2000)
    return _with_trace(rng, "trace", "trace.csv", mutations.text(rng, original.encode()).decode("latin-1"))


def _mooncake(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    lines = services.mooncake_trace(rng, num_requests=rng.randint(1, 20)).splitlines()
    if rng.random() < 0.6:
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(mutations.tree(rng, json.loads(lines[place])))
        text = "\n".join(lines)
    else:
        text = mutations.text(rng, "\n".join(lines).encode()).decode("latin-1")
    return _with_trace(rng, "mooncake", "trace.jsonl", text)


def _service(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    return {"case.yaml": services.yaml_of(services.service(rng))}, []


KINDS = {"scenario": _scenario, "scenario_text": _scenario_text, "overrides": _overrides, "model": _model, "machine": _machine,
         "profile": _profile, "csv_trace": _csv, "mooncake": _mooncake, "service": _service}  # fmt: skip


def draw(seed: int, number: int) -> Case:
    """The kinds take turns."""
    kind = list(KINDS)[number % len(KINDS)]
    files, arguments = KINDS[kind](random.Random(f"{seed}:{number}"))
    return Case(kind=kind, number=number, seed=seed, files=files, arguments=[*COMMAND, *arguments])


def _of_message(message: str, case: Case) -> list[str]:
    """What is wrong with how it was refused."""
    wrong = []
    if not message.startswith("error: "):
        wrong.append("it is refused without 'error: '")
    if not any(place in message for place in (*case.files, "--set")):
        wrong.append("it is refused without a place")
    if len(message) > LONGEST_MESSAGE:
        wrong.append(f"it is refused with {len(message):,} characters")
    wrong += [f"the message has '{words}'" for words in ("std::", "_M_", "codec can't") if words in message]
    return wrong


def run(case: Case, directory: pathlib.Path) -> tuple[forked.Ended, list[str]]:
    """Runs it in the empty `directory`; how it ended, and what is wrong with that."""
    for name, text in case.files.items():
        (directory / name).write_bytes(text.encode("latin-1") if name != "case.yaml" or case.kind == "scenario_text" else text.encode())
    ended = forked.run(case.arguments, directory, seconds=SECONDS)
    wrong = [ended.complaint] if ended.complaint else []
    left = sorted(path.name for path in directory.iterdir() if path.name not in case.files)
    if ended.exit == 0:
        wrong += invariants.violations(directory / "out")
        left.remove("out")
    elif ended.exit == 2:
        wrong += _of_message(ended.output, case)
    elif ended.exit == 1 and not ended.complaint:
        wrong.append("it failed, though nothing outside did")
    if left:
        wrong.append(f"it left {left}")
    return ended, wrong
