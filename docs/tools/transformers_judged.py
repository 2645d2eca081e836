"""What an import of transformers' traces predicts of batches that were not traced, and of two loads, beside what was measured.

    python docs/tools/transformers_judged.py DIR [--rows docs/validation/transformers_engine.json]

DIR holds `<model>.tar` as docs/tools/transformers_engine.py wrote them. Traces and host times are of the traced batches alone; the engine's
steps of other batches are predicted from them. What the HTTP server adds to a step and to a first token is learned from one load where the
other is predicted.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import pathlib
import re
import statistics
import tarfile
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from orrery import Scenario, _core, cli, files, simulate
from orrery.compare import bench_files
from orrery.importers.torch_profile import host, plan, steps
from orrery.text_table import aligned

LOADS = ("poisson", "bursty")
SETTLED = 2  # decode steps of a batch before those that are judged
METRICS = ("ttft_s", "tpot_s")
FIGURES = {
    "decode": "decode step",
    "prefill": "step with prompts",
    "prefill, shape seen": "step with prompts, attention of a shape seen before",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
}


@dataclasses.dataclass(frozen=True)
class Timed:
    """A step as the engine's loop saw it."""

    phase: str
    prefill: str
    num_decodes: int
    decode_context: int
    step_s: float
    is_traced: bool

    @property
    def batch(self) -> steps.BatchOf:
        chunks = ",".join(self.prefill.split())
        decodes = f"decode={self.num_decodes}@{self.decode_context}" if self.num_decodes else ""
        return steps.parse_batch(" ".join(part for part in (f"prefill={chunks}" if chunks else "", decodes) if part))


@dataclasses.dataclass(frozen=True)
class Row:
    """A judged figure."""

    model: str
    gpu: str
    kind: str  # decode; prefill: a step with prompts, apart where its attention had the shape of an earlier one's; ttft_s; tpot_s
    what: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def unpack(archives: Sequence[pathlib.Path], folder: pathlib.Path) -> None:
    for path in archives:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")
    for path in folder.glob("*.gz"):
        if not path.name.startswith("trace_"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))


def read_steps(path: pathlib.Path) -> list[Timed]:
    """Steps of the batches and loads; a step lasts until the next begins, unless the engine had nothing to do."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for row, after in zip(rows, [*rows[1:], None]):
        own = sum(float(row[name]) for name in ("prepare_s", "compute_s", "update_s"))
        until_next = float(after["begin_s"]) - float(row["begin_s"]) if after is not None and after["phase"] == row["phase"] else own
        step_s = until_next if own <= until_next < own + 0.002 else own
        found.append(Timed(row["phase"], row["prefill"], int(row["num_decodes"]), int(row["decode_context"]), step_s, row["traced"] == "1"))
    return found


def write_timings(folder: pathlib.Path, name: str, learned: set[str], had: set[str]) -> pathlib.Path:
    """The steps of the phases to learn from; of those that the engine has `had`, only that it has, which decides whether a shape is new."""
    path = folder / name
    with (folder / "steps.csv").open(newline="", encoding="utf-8") as stream, path.open("w", newline="", encoding="utf-8") as out:
        rows = csv.DictReader(stream)
        kept = csv.DictWriter(out, rows.fieldnames or [])
        kept.writeheader()
        for row in rows:
            if row["phase"] in learned | had:
                kept.writerow(row | ({"traced": "1"} if row["phase"] in had else {}))
    return path


def learn(folder: pathlib.Path, timed: Sequence[Timed]) -> str:
    """Imports the traces; what the command printed."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    machine = plan.DEVICES[about["gpu"]][1]
    taught = {step.phase for step in timed if step.is_traced or step.phase.startswith("rows_")}
    warm_up = {step.phase for step in timed if step.phase.startswith("warm_up")}
    timings = write_timings(folder, "timings.csv", taught, warm_up)
    words = ["import", "torch-profile", *sorted(map(str, folder.glob("trace_*.json.gz"))), "--engine", "transformers", "--model", str(folder / "config.json"),
             "--machine", machine, "--timings", str(timings), "-o", str(folder / "learned"), "--force"]  # fmt: skip
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = cli.main(words)
    if code:
        raise SystemExit(f"{folder}: the import failed\n{said.getvalue()}")
    return said.getvalue()


def learn_serving(folder: pathlib.Path, load: str, timed: Sequence[Timed]) -> pathlib.Path:
    """The profile with what serving a load adds: to a step, by its steps; then to the first token, by what the client saw."""
    before = [step.phase for step in timed]
    before = before[: before.index(f"load_{load}")]
    timings = write_timings(folder, f"served_{load}.csv", {f"load_{load}"}, set(before))
    serving = host.serve_base(scenario_of(folder, {"static_batch": {"batch": 1, "prompt_tokens": 16, "output_tokens": 2}}), host.read_timings(timings))
    path = folder / "learned" / f"served_{load}.yaml"
    text = f"name: served_{load}\nextends: transformers.engine\nhost: {{serve_base: {1e6 * serving.seconds:.6g} us}}\n"
    path.write_text(text, encoding="utf-8")
    measured, simulated = served(folder, load, path)
    later = max(float(np.nanmean(measured["ttft_s"]) - np.nanmean(simulated["ttft_s"])), 0.0)
    path.write_text(f"{text}front_end: {{stream_latency: {1e6 * later:.6g} us}}\n", encoding="utf-8")
    return path


def scenario_of(folder: pathlib.Path, workload: Any, profile: pathlib.Path | None = None) -> Scenario:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    settings = about["settings"]
    return Scenario(
        model={"config": str(folder / "config.json")},
        machine=plan.DEVICES[about["gpu"]][1],
        provider=folder / "learned" / "transformers",
        engine={
            "profile": str(profile or folder / "learned" / "transformers.engine.yaml"),
            "max_num_batched_tokens": int(settings["max_batch_tokens"]),
            "max_num_seqs": int(settings["max_requests_per_batch"]),
            "block_size": int(settings["block_size"]),
            "enable_prefix_caching": False,
        },
        workload=workload,
        seed=1,
    )


def judge_steps(model: str, gpu: str, folder: pathlib.Path, timed: Sequence[Timed]) -> list[Row]:
    """Batches of which nothing was traced: the median decode step of each, and each step with prompts."""
    traced = {step.phase for step in timed if step.is_traced}
    scenario = scenario_of(folder, {"static_batch": {"batch": 1, "prompt_tokens": 16, "output_tokens": 2}})

    def predicted(batch: steps.BatchOf, *, is_seen: bool = False, are_rows_seen: bool = True) -> float:
        return float(_core.explain_step(scenario, plan.core_batch(batch), is_seen, are_rows_seen)["duration_s"])

    found = []
    repeated, repeated_rows = repeated_shapes(timed)
    for phase in dict.fromkeys(step.phase for step in timed):
        if phase in traced or not re.fullmatch(r"b\d+_c\d+", phase):
            continue
        of = [step for step in timed if step.phase == phase]
        most = max(step.num_decodes for step in of)
        decodes = [step for step in of if not step.prefill and step.num_decodes == most][SETTLED:]
        if decodes:
            middle = decodes[len(decodes) // 2]
            measured = statistics.median(step.step_s for step in decodes)
            found.append(Row(model, gpu, "decode", f"{most} x {middle.decode_context // most}", predicted(middle.batch), measured))
        for step in of:
            if step.prefill:
                is_seen = id(step) in repeated
                kind = "prefill, shape seen" if is_seen else "prefill"
                found.append(Row(model, gpu, kind, str(step.batch), predicted(step.batch, is_seen=is_seen, are_rows_seen=id(step) in repeated_rows), step.step_s))
    return found


def repeated_shapes(timed: Sequence[Timed]) -> tuple[set[int], set[int]]:
    """Ids of the steps with as many queries and keys as an earlier one: cuDNN has a plan for their attention and takes 40 ms less; and of those
    with as many queries."""
    seen: set[tuple[int, ...]] = set()
    found: tuple[set[int], set[int]] = (set(), set())
    for step in timed:
        for ids, shape in zip(found, ((step.batch.queries, step.batch.keys), (step.batch.queries,))):
            if shape in seen:
                ids.add(id(step))
            seen.add(shape)
    return found


def served(folder: pathlib.Path, load: str, profile: pathlib.Path) -> tuple[Any, Any]:
    """Requests of a load as its client saw them, and as they are simulated."""
    bench = bench_files.read(folder / f"bench_{load}.json")
    assert bench.requests is not None
    columns = bench.requests
    frame = {
        "arrival_s": columns["start_s"] - columns["start_s"].min(),
        "prompt_tokens": columns["prompt_tokens"].astype(int),
        "output_tokens": columns["output_tokens"].astype(int),
    }
    return columns, simulate(scenario_of(folder, frame, profile)).requests


def judge_load(model: str, gpu: str, folder: pathlib.Path, kind: str, timed: Sequence[Timed]) -> list[Row]:
    """What serving adds to a step is learned from the other load."""
    path = folder / f"bench_{kind}.json"
    other = next(load for load in LOADS if load != kind)
    if not path.exists() or not any(step.phase == f"load_{other}" for step in timed):
        return []
    of, simulated_of = served(folder, kind, learn_serving(folder, other, timed))
    found = []
    for metric in METRICS:
        simulated, measured = np.asarray(simulated_of[metric], float), of[metric]
        for name, middle in (("mean", np.nanmean), ("median", np.nanmedian)):
            found.append(Row(model, gpu, metric, f"{kind}, {name} of {len(measured)}", float(middle(simulated)), float(middle(measured))))
    return found


def judge(archives: Sequence[pathlib.Path]) -> tuple[list[Row], str]:
    """Rows of one model on one GPU, and what its import said."""
    model = archives[0].name.split(".tar")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        unpack(archives, folder)
        gpu = json.loads((folder / "about.json").read_text(encoding="utf-8"))["gpu"]
        timed = read_steps(folder / "steps.csv")
        said = learn(folder, timed)
        rows = judge_steps(model, gpu, folder, timed)
        for kind in LOADS:
            rows += judge_load(model, gpu, folder, kind, timed)
    return rows, said


def table_of(rows: Sequence[Row]) -> str:
    """Errors by model and figure, in Markdown."""
    lines = ["| model | GPU | figure | rows | median | p95 | bias |", "|---|---|---|---|---|---|---|"]
    for key in dict.fromkeys((row.model, row.gpu, row.kind) for row in rows):
        errors = np.array([row.error for row in rows if (row.model, row.gpu, row.kind) == key])
        size = np.abs(errors)
        figure = FIGURES.get(key[2], key[2])
        lines.append(
            f"| {key[0]} | {key[1].removeprefix('NVIDIA ')} | {figure} | {len(errors)} | {np.median(size):.1%} | {np.quantile(size, 0.95):.1%} | {errors.mean():+.1%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Predicts what transformers' continuous batching was measured to do.")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--rows", type=pathlib.Path, metavar="FILE.json", help="write every row there")
    parser.add_argument("--verbose", action="store_true", help="print every row, and what the imports said")
    options = parser.parse_args()
    parts: dict[str, list[pathlib.Path]] = {}
    for path in sorted(options.folder.rglob("*.tar")):
        parts.setdefault(str(path.parent / re.sub(r"(\.\d+)?\.tar$", "", path.name)), []).append(path)
    if not parts:
        raise SystemExit(f"found no archive in {options.folder}; expected those of docs/tools/transformers_engine.py")
    rows: list[Row] = []
    for archives in parts.values():
        found, said = judge(sorted(archives, key=lambda path: len(path.name)))
        rows += found
        if options.verbose:
            print(said)
            cells = [(row.kind, row.what, f"{1e3 * row.predicted_s:.3f}", f"{1e3 * row.measured_s:.3f}", f"{row.error:+.1%}") for row in found]
            print(aligned(("figure", "of", "predicted ms", "measured ms", "error"), cells, right={2, 3, 4}), flush=True)
    print(table_of(rows), end="")
    if options.rows:
        files.write_text(options.rows, json.dumps([dataclasses.asdict(row) | {"error": row.error} for row in rows], indent=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
