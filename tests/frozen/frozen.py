"""What is frozen, and how its digests are made: a line "DIGEST COUNT NAME" for each part, sorted by name.

README.md says what a line that moved means.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = "tests/frozen"  # below a build directory
ALL = os.environ.get("ORRERY_TEST_ALL") == "1"  # also what takes long
PART = 6  # without ALL: one published case in so many

Digests = dict[str, str]  # by name: "DIGEST COUNT", the count being that of lines


class NotBuilt(Exception):
    """A program that is not there; the text says how to build it."""


def digest_of(text: bytes, num_lines: int | None = None) -> str:
    """128 bits of SHA-256, and how many lines there are."""
    num_lines = text.count(b"\n") if num_lines is None else num_lines
    return f"{hashlib.sha256(text).hexdigest()[:32]} {num_lines}"


def sections(program: str, *arguments: str, builds: tuple[str, ...] = ("build",)) -> Iterator[tuple[str, str]]:
    """Name and digest of each section that a program of this directory prints (section.h)."""
    paths = [ROOT / build / PROGRAMS / program for build in builds]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise NotBuilt(f"{paths[0]} is not there: ninja -C {builds[0]} {program}")
    with subprocess.Popen([path, *arguments], stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            name, num_lines, num_bytes = line.decode().removeprefix("section ").rstrip("\n").split("\t")
            yield name, digest_of(process.stdout.read(int(num_bytes)), int(num_lines))
    if process.returncode != 0:
        raise RuntimeError(f"{path} ended with status {process.returncode}")


def prices() -> Digests:
    """Kernels and collectives as the cost model prices them."""
    return dict(sections("orrery_frozen_prices", str(ROOT), "all" if ALL else "sample"))


@functools.cache
def all_plans() -> Digests:
    return dict(sections("orrery_frozen_plans", str(ROOT)))


def plans() -> Digests:
    """Plans by what they mean."""
    return {name: digest for name, digest in all_plans().items() if name.startswith("meaning ")}


def plan_texts() -> Digests:
    """The text form of the same plans."""
    return {name: digest for name, digest in all_plans().items() if name.startswith("text ")}


def checks() -> Digests:
    """Calls that are checked, timed and calibrated on a GPU."""
    return dict(sections("orrery_frozen_checks", builds=("build", "build-gpu")))


# Of the provenance in summary.json, what is not of the result.
NOT_OF_THE_RESULT = ("orrery_version", "revision")


def summary_text(path: pathlib.Path) -> bytes:
    """summary.json without NOT_OF_THE_RESULT."""
    summary = json.loads(path.read_bytes())
    for key in NOT_OF_THE_RESULT:
        summary["provenance"].pop(key, None)
    return json.dumps(summary, indent=1).encode()


def scenarios() -> Digests:
    """Files of a run of every shipped scenario, and of the prediction of those that are validated."""
    import orrery
    from orrery import _core

    digests = {}
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        if path.parent.name == "explore":  # questions about many plans
            continue
        if path.parent.name == "engines":
            continue
        name = path.relative_to(ROOT / "scenarios").with_suffix("").as_posix()
        scenario = orrery.load(path)
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            _core.run_scenario(scenario).write(out)
            digests[f"{name} summary.json"] = digest_of(summary_text(out / "summary.json"))
            for file in ("requests.csv", "steps.csv", "step.trace.json"):
                digests[f"{name} {file}"] = digest_of((out / file).read_bytes())
        if path.parent.name in ("validate", "layers"):
            with tempfile.TemporaryDirectory() as folder:
                _core.predict_validation(scenario).write(folder)
                for what, text in predicted_texts(pathlib.Path(folder) / "predicted").items():
                    digests[f"{name} predicted {what}"] = digest_of(text)
    return digests


def predicted_texts(directory: pathlib.Path) -> dict[str, bytes]:
    """The tables of a prediction by name, the spans of all steps together."""
    texts = {}
    for path in sorted(directory.glob("*.csv")):
        what = "spans" if path.name.endswith(".spans.csv") else path.name
        texts[what] = texts.get(what, b"") + path.read_bytes()
    return texts


def scorecard() -> Digests:
    """The scorecard's JSON, case by case; its tables of errors with all cases alone."""
    from orrery.scorecard import cases, command, outcomes

    published = cases.read_cases(ROOT / "data" / "serving" / "published_serving.csv")
    card = command.to_dict(outcomes.compare(published if ALL else published[::PART], threads=os.cpu_count() or 1))
    texts = {f"case {case['case_id']}": case for case in card["cases"]}
    if ALL:
        texts |= {key: value for key, value in card.items() if key != "cases"}
    here = f"{ROOT}/"  # messages name files by their whole path
    return {name: digest_of(json.dumps(value, indent=1, allow_nan=False).replace(here, "").encode()) for name, value in texts.items()}


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[[], Digests]
    in_parts: bool = False  # without ALL only some of the lines are made

    @property
    def path(self) -> pathlib.Path:
        return HERE / f"{self.name}.txt"


KINDS = (
    Kind("prices", prices, in_parts=True),
    Kind("plans", plans),
    Kind("plan_texts", plan_texts),
    Kind("scenarios", scenarios),
    Kind("scorecard", scorecard, in_parts=True),
    Kind("checks", checks),
)


def read(path: pathlib.Path) -> Digests:
    digests = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        digest, count, name = line.split(" ", 2)
        digests[name] = f"{digest} {count}"
    return digests


def write(path: pathlib.Path, digests: Digests) -> None:
    path.write_text("".join(f"{digests[name]} {name}\n" for name in sorted(digests)), encoding="utf-8")


def moved(frozen: Digests, found: Digests, *, in_parts: bool = False) -> list[str]:
    """Lines that differ, "-" as frozen and "+" as found; of found `in_parts`, what is not made is not missed."""
    lines = []
    for name in sorted(frozen.keys() | found.keys()):
        if frozen.get(name) == found.get(name) or (in_parts and name not in found):
            continue
        lines += [f"{sign} {digests[name]} {name}" for sign, digests in (("-", frozen), ("+", found)) if name in digests]
    return lines
