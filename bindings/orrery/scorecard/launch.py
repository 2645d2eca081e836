"""What was set for a run: data/serving/launch_settings.csv and engine_defaults.csv, asked for one published case.

`launch_settings.csv` has a line for each setting of each revision of public launch scripts and generators. In force on
a day is, setting by setting, the line whose condition holds with the greatest `valid_from` that is not after it; of
lines of one day one with a condition goes before one without, and that before "not set from here on". A script that
was moved keeps its settings until one that is listed whole (it sets the tensor-parallel size) takes its place.
A condition or formula that `expressions` does not understand is listed in `Launch.unread`, and its line does not count.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

from ..simulation import project_root
from . import expressions
from .expressions import NotUnderstood, Value

COLUMNS = ("source_family", "engine", "engine_version_or_image", "model", "precision", "gpu", "condition", "setting", "value",
           "simulator_setting", "valid_from", "valid_to", "repository", "path", "commit", "date", "note")  # fmt: skip
VARIABLE = "script variable: "
EXPERT_PARALLEL = (VARIABLE + "EP",)  # flags in a variable of their own: "--enable-expert-parallel" or empty
REMOVED = "(script)"
UNSET = re.compile(r"not set|never written|not written|no longer written|empty$|not switched off")
WHOLE_SCRIPT = ("tensor-parallel-size", "tp_size", "tp-size", "tp")
# What runs of every length and engine share is listed under prose, not under a test of the sweep point.
ALWAYS = ("", "all fixed-length runs", "aggregated", "benchmark rules", "automated evaluation, concurrency list by the user",
          "docker launcher of H100")  # fmt: skip
NEVER = ("default rules (not benchmark)",)
# Runs of the generator's own benchmark: all of its author's once the evaluation module was gone.
GENERATED = ("generated benchmark", "AIPerf default")
EVALUATION_END = datetime.date(2026, 3, 3)
PRECISIONS = {"mxfp4": "fp4", "nvfp4": "fp4", "fp8_block": "fp8", "mxfp8": "fp8"}
IMAGE = "container image"
SWEEP = "sweep points"
SPECULATIVE = "speculative decoding"
POINT = ("CONC", "ISL", "OSL", "TP")  # of a sweep point, also where a row states none
# What the rules read, besides variables; other lines (environment, parsers, profilers) change nothing that is simulated.
FLAGS = frozenset((
    "tensor-parallel-size", "tp_size", "tp-size", "tp", "enable-expert-parallel", "ep_size", "ep-size", "expert-parallel-size",
    "ep_size in force", "enable_attention_dp", "data-parallel-size", "max-num-seqs", "max_batch_size", "max-running-requests",
    "max-num-batched-tokens", "max-num-batched-tokens on the command line", "max_num_tokens", "chunked-prefill-size",
    "max-prefill-tokens", "enable-mixed-chunk", "gpu-memory-utilization", "kv_cache_config.free_gpu_memory_fraction",
    "mem-fraction-static", "kv-cache-dtype", "kv_cache_config.dtype", "no-enable-prefix-caching", "disable-radix-cache",
    "kv_cache_config.enable_block_reuse", "prefix caching", "async-scheduling", "disable_overlap_scheduler", "stream-interval",
    "stream_interval", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", "compilation-config",
    "max-cudagraph-capture-size", "cuda-graph-sizes", "cuda_graph_config.max_batch_size", "cuda-graph-max-bs",
    "cuda graph sizes", "cuda-graph-bs", "cuda_graph_config.batch_sizes", "moe_config.backend", "moe-backend",
    "moe-runner-backend", "max-model-len given to the scripts", "client: warm-up requests", "client: max-concurrency",
    "client: num-dataset-entries", "num-dataset-entries", "client: request count", "client: num-requests", "client: num-prompts",
))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Line:
    number: int  # in the file
    cells: Mapping[str, str]
    begin: datetime.date
    end: datetime.date | None

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    @property
    def source(self) -> str:
        commit = self["commit"] or self["date"]
        return f"launch_settings.csv:{self.number}: {self['path']} at {commit}, from {self['valid_from']}"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One flag, variable or rule as it was in force; `value` is None where it was left to the engine."""

    name: str
    value: Value | None
    text: str  # as the file has it
    source: str


@dataclasses.dataclass(frozen=True)
class Launch:
    """Everything that was set for a case, by the name of the flag."""

    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    unread: tuple[str, ...] = ()  # lines whose condition or value is not understood
    image: str = ""
    image_source: str = ""

    def first(self, *names: str) -> Setting | None:
        """The first of these flags that was set."""
        return next((s for name in names if (s := self.settings.get(name)) and s.value is not None), None)


def read(path: pathlib.Path) -> list[Line]:
    """The lines of a launch table. Throws ValueError with file, line and column."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}:1: missing column '{missing[0]}'; expected {', '.join(COLUMNS)}")
        return [_line(path, reader.line_num, row) for row in reader]


def _line(path: pathlib.Path, number: int, row: Mapping[str, str]) -> Line:
    if None in row or None in row.values():
        raise ValueError(f"{path}:{number}: found {'more' if None in row else 'fewer'} cells than columns")
    begin = _date(path, number, "valid_from", row["valid_from"])
    # "2026-01-30 (benchmark rules keep it)": the rules by which published rows are made do not end.
    kept = row["valid_to"].endswith("(benchmark rules keep it)")
    end = None if kept or not row["valid_to"] else _date(path, number, "valid_to", row["valid_to"])
    return Line(number, row, begin or datetime.date.min, end)


def date_of(text: str) -> datetime.date | None:
    """Of "2026-01-31"; None where no calendar has the day."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def _date(path: pathlib.Path, number: int, column: str, text: str) -> datetime.date | None:
    date = date_of(text)
    if text and date is None:
        raise ValueError(f"{path}:{number}: column '{column}': found '{text}', expected a day such as 2026-01-31")
    return date


@functools.cache
def shipped() -> tuple[Line, ...]:
    return tuple(read(project_root() / "data" / "serving" / "launch_settings.csv"))


def model_key(name: str) -> str:
    """One name for a model and its checkpoints of other formats and dates: "nvidia/Llama-3.3-70B-Instruct-FP8" is
    "llama-3.3-70b", and so is what older scripts and labels call Llama-3.1-70B."""
    key = name.lower().partition(" ")[0].partition(",")[0].rpartition("/")[2]
    key = re.sub(r"(-(instruct|pro|fp8|fp4|nvfp4|mxfp8|mxfp4|int4|bf16|v2|\d{4}|a\d+b))+(?=-|$)", "", key)
    return key.replace("llama-3.1-70b", "llama-3.3-70b")


def launch(fields: Mapping[str, str], day: datetime.date, lines: Sequence[Line] | None = None) -> Launch:
    """What was in force for the case of these columns on `day`; nothing where no script is listed for it."""
    of_case = about(fields, lines)
    scripts = _with_moves([line for line in of_case if line["setting"] in (*FLAGS, REMOVED) or line["setting"].startswith(VARIABLE)])
    in_force = _at(scripts, day)
    names = _Names(fields, in_force, day)
    by_name: dict[str, list[Line]] = {}
    for line in in_force:
        by_name.setdefault(line["setting"], []).append(line)
    # Variables count where a flag names them.
    found = {
        name: setting
        for name, group in by_name.items()
        if (name in FLAGS or name.startswith(EXPERT_PARALLEL)) and (setting := names.in_force(name, group))
    }
    images = [line for line in _at(of_case, day) if line["setting"] == IMAGE]
    image = max(images, key=lambda line: line.begin, default=None)
    return Launch(found, tuple(names.unread), image["value"] if image else "", image.source if image else "")


def attention_dp(fields: Mapping[str, str], day: datetime.date) -> Setting | None:
    """Whether the sweep point of the row ran attention data parallel, where the sweep lists it one way only."""
    point = sweep_point(fields)
    answers: dict[bool, Line] = {}
    for line in _at(about(fields), day):
        lengths = line["condition"].partition(" (configuration")[0]
        if line["setting"] != SWEEP or lengths != f"ISL={fields['isl']} and OSL={fields['osl']}":
            continue
        for entry in re.finditer(r"tp(\d+)(?: ep(\d+))?( dp-attention)? conc (\d+)\.\.(\d+)", line["value"]):
            ways = (int(entry[1]), int(entry[2] or 1))
            if ways == (point.get("TP"), point["EP_SIZE"]) and int(entry[4]) <= point.get("CONC", 0) <= int(entry[5]):
                answers[bool(entry[3])] = line
    if len(answers) != 1:
        return None
    ((answer, line),) = answers.items()
    return Setting(SWEEP, answer, line["value"], line.source)


def about(fields: Mapping[str, str], lines: Sequence[Line] | None = None) -> list[Line]:
    """The lines of every day that are about the launch of such a case."""
    if lines is not None:
        return [line for line in lines if _is_about(line, fields)]
    return list(_shipped_about(tuple((name, fields[name]) for name in ASKED)))


ASKED = ("family", "engine", "engine_version", "model", "weights_dtype", "gpu_key")  # of a row, by `_is_about`


@functools.cache
def _shipped_about(asked: tuple[tuple[str, str], ...]) -> tuple[Line, ...]:
    return tuple(line for line in shipped() if _is_about(line, dict(asked)))


def _at(lines: Iterable[Line], day: datetime.date) -> list[Line]:
    return [line for line in lines if line.begin <= day and (line.end is None or day < line.end)]


def _is_about(line: Line, fields: Mapping[str, str]) -> bool:
    family = "SILIX" if fields["family"] == "IX832" else fields["family"]
    format_ = PRECISIONS.get(fields["weights_dtype"], fields["weights_dtype"])
    return (
        line["source_family"] == family
        and line["engine"] in ("", "all", fields["engine"])
        and (not line["model"] or model_key(line["model"]) == model_key(fields["model"]))
        and line["precision"] in ("", format_)
        and line["gpu"] in ("", "all", fields["gpu_key"])
        and (line["setting"] == SPECULATIVE or "mtp" not in line["path"])
        and "-mtp" not in line["condition"]
        and line["condition"] not in NEVER
        and _is_of_version(line["engine_version_or_image"], fields["engine_version"])
    )


def _is_of_version(text: str, version: str) -> bool:
    """Whether generator templates that `text` names are for `version`; images say nothing about it."""
    if not text.startswith("template") or text == "template without version":
        return not text.startswith("template without")
    named = re.findall(r"\d+\.\d+[\w.]*", text)
    if " to " in text and len(named) == 2:
        return version_key(named[0]) <= version_key(version) <= version_key(named[1])
    return version in named


def version_key(text: str) -> tuple[int, ...]:
    """For comparing: "1.0.0rc3" < "1.0.0" < "1.0.0.post1"; letters of release candidates count as less than none."""
    parts: list[int] = []
    for part in text.lstrip("v").split("."):
        digits, kind, number = re.fullmatch(r"(\d*)(rc|post|dev|x)?(\d*).*", part).groups()  # type: ignore[union-attr]
        parts += [int(digits)] if digits else []
        parts += {"rc": [-1, int(number or 0)], "dev": [-1, 0], "post": [1, int(number or 0)]}.get(kind or "", [])
    return tuple(parts + [0] * (6 - len(parts)))


def _with_moves(lines: Iterable[Line]) -> list[Line]:
    """Lines that ended because their script was moved go on until a script that is listed whole takes its place."""
    lines = list(lines)
    removed = {line["path"]: line.begin for line in lines if line["setting"] == REMOVED}
    kept = []
    for line in lines:
        if line["setting"] == REMOVED:
            continue
        if line.end is not None and line.end == removed.get(line["path"]):
            successors = [
                other.begin
                for other in lines
                if other["setting"] in WHOLE_SCRIPT and other["path"] != line["path"] and other.begin >= line.end
            ]
            line = dataclasses.replace(line, end=min(successors, default=None))
        kept.append(line)
    return kept


class _Names:
    """Names of conditions and formulas: the sweep point, then variables of the same scripts."""

    def __init__(self, fields: Mapping[str, str], lines: Sequence[Line], day: datetime.date) -> None:
        self.point = sweep_point(fields)
        self.day = day
        self.lines = lines
        self.unread: list[str] = []
        self.resolving: set[str] = set()

    def __call__(self, name: str) -> Value:
        if name in self.resolving:
            raise NotUnderstood(f"{name} is defined by itself")
        group = [line for line in self.lines if line["setting"] == VARIABLE + name]
        self.resolving.add(name)
        try:
            setting = self.in_force(VARIABLE + name, group)
        finally:
            self.resolving.discard(name)
        if setting and setting.value is not None:
            return setting.value
        if name in self.point:
            return self.point[name]
        if name == "MAX_MODEL_LEN":
            given = self.in_force("max-model-len given to the scripts", [line for line in self.lines if line["setting"] == "max-model-len given to the scripts"])
            if given and given.value is not None:
                return given.value
        raise NotUnderstood(f"unknown variable {name}")

    def in_force(self, name: str, group: Sequence[Line]) -> Setting | None:
        """Of lines of one setting in force, the one that counts."""
        holding = []
        for line in group:
            try:
                if self._holds(line):
                    holding.append(line)
            except NotUnderstood as error:
                self._cannot_read(line, error)
        # The latest; of one day, a test before none before "not set"; docker before slurm, as the first in the file.
        holding.sort(key=lambda line: (line.begin, not UNSET.match(line["value"]), line["condition"] not in ALWAYS, -line.number))
        for line in reversed(holding):
            try:
                return Setting(name, self._value(name, line), line["value"], line.source)
            except NotUnderstood as error:
                self._cannot_read(line, error)
        return None

    def _holds(self, line: Line) -> bool:
        if line["condition"] in GENERATED:
            return self.day >= EVALUATION_END
        return line["condition"] in ALWAYS or expressions.condition(line["condition"], self)

    def _value(self, name: str, line: Line) -> Value | None:
        text = plain_value(line["value"])
        if UNSET.match(text):
            return None
        if text in ("true", "True"):
            return True
        if text in ("false", "False"):
            return False
        if text.startswith(("{", "[", "--", "every ")) or re.fullmatch(r"[a-z][\w-]*", text) and text != "batch":
            return text
        if re.fullmatch(r"[A-Z]+", text) and text not in (*POINT, *self.point) and not self._has_variable(text):
            return text  # a name of the engine's, such as a backend
        return expressions.formula(text, self, name.removeprefix(VARIABLE))

    def _has_variable(self, name: str) -> bool:
        return any(line["setting"] == VARIABLE + name for line in self.lines)

    def _cannot_read(self, line: Line, error: NotUnderstood) -> None:
        text = f"{line['setting']} = {line['value']} if {line['condition'] or 'always'} ({line.source}): {error}"
        if text not in self.unread:
            self.unread.append(text)


# The generator's own words. The batch that its search chose is the number of clients of a published row.
WORDS = (
    (r"^(rule|written): ", ""),
    (r"the batch size that the search chose|the chosen batch(, 128 if none)?", "batch"),
    (r"(.+) rounded up to a multiple of (\d+)", r"roundup(\1, \2)"),
    (r" (unless the user asks|by default)$", ""),
    (r" \([a-z][^()]*\)$|, all the first prompt$", ""),
    (r"\bconcurrency\b", "CONC"),
)


def plain_value(text: str) -> str:
    """A value as a formula, where it is prose of the generator's."""
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def sweep_point(fields: Mapping[str, str]) -> dict[str, Value]:
    """CONC, ISL, OSL, TP and EP_SIZE of the row, as they were passed to its script."""
    point: dict[str, Value] = {}
    for name, column in (("CONC", "load_value"), ("ISL", "isl"), ("OSL", "osl"), ("TP", "tp"), ("EP_SIZE", "moe_ep")):
        number = re.match(r"\d+", fields[column])
        if number:
            point[name] = int(number[0])
    ranks = int(fields["tp"] or 1) * int(fields["attention_dp"] or 1)
    if fields["tp"]:
        point["TP"] = ranks  # attention that is data parallel is TP of the script as well
    point.setdefault("EP_SIZE", 1)
    point["MoE"] = bool(fields["moe_tp"] or fields["moe_ep"])
    point["DP_ATTENTION"] = int(fields["attention_dp"] or 1) > 1
    if "CONC" in point:
        point["batch"] = point["CONC"]
    return point
