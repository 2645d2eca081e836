"""Transformers' continuous batching on the GPU here, as an engine to learn: steps timed, some of them traced, two loads served.

    python docs/tools/transformers_engine.py models/meta-llama--Meta-Llama-3.1-8B.config.json -o OUT --budget 130

The weights are random, the shapes those of the config. Standard library, torch and transformers are enough. Several configs are run one after
the other, each in a process of its own, and share the budget; `CONFIG.json:24` has 24 layers. OUT gets an archive `<model>.tar` for each, with

    config.json          what was run
    about.json           GPU, driver, versions, settings as the engine resolved them
    steps.csv            a line for each step: batch, when it began, its three parts in seconds, whether a profiler watched
    trace_*.json.gz      torch.profiler's traces of some batches, with shapes
    bench_*.json         requests of each load as the client saw them (orrery compare reads it)
    requests_*.jsonl     what the client sent

`docs/tools/transformers_judged.py` imports the traces, predicts the rest and compares.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import dataclasses
import gc
import gzip
import io
import json
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

LOAD = pathlib.Path(__file__).resolve().parents[2] / "bindings/orrery/profiling/load.py"
BLOCK_SIZE = 256
NUM_BLOCKS = 256
MAX_BATCH_TOKENS = 2048
# Prompts and tokens of each: a grid that is traced, and others in and between its points that are only timed.
TRACED = ((1, 128), (1, 1024), (1, 4096), (4, 128), (4, 1024), (4, 4096), (16, 128), (16, 1024), (32, 128), (32, 1024))
TIMED = ((2, 512), (8, 256), (12, 512), (3, 300), (24, 256), (1, 2500), (6, 700), (2, 2048), (1, 600), (24, 700), (12, 1500), (8, 2048))
# Tokens of prompts that are sent twice, to learn what numbers of rows take that come for the first time; some lie next to others.
NEW_ROWS = (20, 21, 50, 90, 160, 161, 250, 400, 401, 530, 660, 850, 851, 1100, 1400, 1401, 1800)
DECODE_STEPS = 8  # of each batch
TRACED_DECODES = 2
TRACED_PREFILLS = 2  # the first steps of a traced batch
OUTPUT_TOKENS = (16, 48)
PROMPT_TOKENS = (64, 512)
LOAD_S = 12.0
DRAIN_S = 8.0  # of a load, its client's start included
MOST_BYTES = 15 << 20


@dataclasses.dataclass
class Step:
    """One step of the engine; a chunk is (new tokens, tokens cached before, whether it ends its prompt)."""

    phase: str
    chunks: list[tuple[int, int, bool]]
    num_decodes: int
    decode_context: int  # tokens of all decodes, the new ones included
    begin_s: float = 0.0
    prepared_s: float = 0.0
    computed_s: float = 0.0
    end_s: float = 0.0
    is_traced: bool = False

    def label(self) -> str:
        """What the importer reads in a trace."""
        chunks = ",".join(f"{query}+{context}{'' if ends else '-'}" for query, context, ends in self.chunks)
        return f"orrery_step prefill={chunks} decode={self.num_decodes}@{self.decode_context}"


class Recorder:
    """Watches the engine's loop: what each step computed and when, and traces the steps that are asked for.

    The loop's thread calls begin, prepared, computed and end; the main thread opens the gate and asks for traces.
    """

    def __init__(self, torch: Any, folder: pathlib.Path) -> None:
        self.torch, self.folder = torch, folder
        self.steps: list[Step] = []
        self.phase = "warm_up"
        self.gate = threading.Event()
        self.gate.set()
        self.windows: list[tuple[int, int]] = []  # first step and number of steps to trace, counted from the phase's start
        self.phase_start = 0
        self._profiler: Any = None
        self._window_end = 0
        self._begin = 0.0
        self._step: Step | None = None
        self._annotation: Any = None
        with self._profile():  # the profiler is set up by the thread that loaded it
            torch.zeros(8).sum()

    def _profile(self) -> Any:
        activities = [self.torch.profiler.ProfilerActivity.CPU]
        if self.torch.cuda.is_available():
            activities.append(self.torch.profiler.ProfilerActivity.CUDA)
        return self.torch.profiler.profile(activities=activities, record_shapes=True)

    def start_phase(self, name: str, windows: Sequence[tuple[int, int]] = ()) -> None:
        self.phase, self.windows, self.phase_start = name, list(windows), len(self.steps)

    def begin(self) -> None:
        self.gate.wait()
        index = len(self.steps) - self.phase_start
        if self._profiler is None:
            for first, count in self.windows:
                if index == first:
                    self._start_profiler(index + count)
        self._begin = time.perf_counter()
        if self._profiler is not None:
            self._annotation = self.torch.profiler.record_function(f"ProfilerStep#{len(self.steps)}")
            self._annotation.__enter__()

    def prepared(self, chunks: list[tuple[int, int, bool]], num_decodes: int, decode_context: int) -> Step:
        self._step = Step(self.phase, chunks, num_decodes, decode_context, self._begin, time.perf_counter())
        self._step.is_traced = self._profiler is not None
        return self._step

    def nothing(self) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None

    def end(self) -> None:
        step = self._step
        if step is None:
            return
        self.nothing()
        step.end_s = time.perf_counter()
        self.steps.append(step)
        self._step = None
        if self._profiler is not None and len(self.steps) - self.phase_start >= self._window_end:
            self._stop_profiler()

    def _start_profiler(self, window_end: int) -> None:
        self._profiler = self._profile()
        self._profiler.start()
        self._window_end = window_end

    def _stop_profiler(self) -> None:
        self._profiler.stop()
        path = self.folder / f"trace_{self.phase}_{len(self.steps)}.json"
        self._profiler.export_chrome_trace(str(path))
        content = path.read_bytes()
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content, compresslevel=6))
        path.unlink()
        kernels = content.count(b'"cat": "kernel"')
        print(f"          {path.name}: {kernels} kernels, {len(content) / 1e6:.1f} MB", flush=True)
        self._profiler = None


def batch_of(processor: Any) -> tuple[list[tuple[int, int, bool]], int, int]:
    """What the batch that was just prepared computes; `position_offset` counts its new tokens already."""
    inputs = processor.inputs_and_outputs
    if hasattr(inputs, "io_pairs"):
        inputs = inputs.io_pairs[inputs.current_pair].host_io
    chunks, num_decodes, decode_context = [], 0, 0
    for future in inputs.requests_in_batch:
        query, after = future.query_length, future.state.position_offset
        if query == 1 and after > 1:
            num_decodes, decode_context = num_decodes + 1, decode_context + after
        else:
            chunks.append((query, after - query, bool(future.has_new_token)))
    return chunks, num_decodes, decode_context


def watch(processor_class: type, recorder: Recorder) -> None:
    """Puts the recorder around the three parts of the engine's step."""
    missing = [name for name in ("prepare_next_batch", "_generation_step", "update_batch") if not hasattr(processor_class, name)]
    if missing:
        raise SystemExit(f"found {processor_class.__name__} without {', '.join(missing)}; expected transformers 5.x's continuous batching")
    prepare, generate, update = processor_class.prepare_next_batch, processor_class._generation_step, processor_class.update_batch

    def prepare_next_batch(self: Any) -> bool:
        recorder.begin()
        found = prepare(self)
        if found:
            recorder.prepared(*batch_of(self))
        else:
            recorder.nothing()
        return found

    def _generation_step(self: Any, model: Any) -> None:
        step = recorder._step
        traced = step is not None and step.is_traced
        with recorder.torch.profiler.record_function(step.label()) if traced else contextlib.nullcontext():
            generate(self, model)
        if step is not None:
            step.computed_s = time.perf_counter()

    def update_batch(self: Any) -> None:
        update(self)
        recorder.end()

    processor_class.prepare_next_batch = prepare_next_batch
    processor_class._generation_step = _generation_step
    processor_class.update_batch = update_batch


def load_model(torch: Any, transformers: Any, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The model of a config.json with random weights, and the config that it has."""
    config, layers = options.configs[0]
    content = json.loads(config.read_text(encoding="utf-8"))
    if "model_type" not in content:
        raise SystemExit(f"{config}: found no model_type; expected a Hugging Face config.json")
    if layers:
        content["num_hidden_layers"] = layers
    content.pop("quantization_config", None)
    model_type = content["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise SystemExit(f"{config}: transformers {transformers.__version__} knows no model_type '{model_type}'")
    model_config = transformers.CONFIG_MAPPING[model_type].from_dict(content)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(model_config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).eval(), content


@contextlib.contextmanager
def manager_of(transformers: Any, model: Any, vocabulary: int) -> Iterator[Any]:
    """The running manager of the model's continuous batching."""
    if not hasattr(model, "init_continuous_batching"):
        raise SystemExit(f"transformers {transformers.__version__}: found no init_continuous_batching; expected 5.x")
    known = {field.name for field in dataclasses.fields(transformers.ContinuousBatchingConfig)}
    wanted = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "max_batch_tokens": MAX_BATCH_TOKENS, "allow_block_sharing": False}
    settings = transformers.ContinuousBatchingConfig(**{key: value for key, value in wanted.items() if key in known})
    generation = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=64)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=settings)
    manager.start()
    try:
        yield manager
    finally:
        manager.stop(block=True, timeout=20)


def run_batch(manager: Any, recorder: Recorder, name: str, decodes: int, prompt: int, *, traced: bool = False, seed: int,
              decode_steps: int = DECODE_STEPS) -> None:  # fmt: skip
    """`decodes` prompts of `prompt` tokens at once, and `decode_steps` steps with all of them; without, they end with their first tokens."""
    draw = random.Random(seed)
    chunk_steps = -(-decodes * prompt // MAX_BATCH_TOKENS)
    first_decode = chunk_steps + 4  # all prompts are in, the first tokens are out
    windows = [(0, min(TRACED_PREFILLS, chunk_steps)), (first_decode, TRACED_DECODES)] if traced else []
    recorder.gate.clear()
    recorder.start_phase(name, windows)
    tokens = chunk_steps + 4 + decode_steps if decode_steps else 1
    for _ in range(decodes):
        ids = [100 + draw.randrange(1000) for _ in range(prompt)]
        manager.add_request(input_ids=ids, max_new_tokens=tokens)
    recorder.gate.set()
    ended = 0
    deadline = time.perf_counter() + 60
    while ended < decodes:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error:
                raise SystemExit(f"{name}: the engine says {result.error}")
            ended += 1
        elif time.perf_counter() > deadline or not manager.is_running():
            raise SystemExit(f"{name}: {ended} of {decodes} requests ended within 60 s; expected all")


class Server:
    """Completions over HTTP, streamed, from the manager."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.count = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = 0
        while (line := (await reader.readline()).decode("latin-1").strip()) != "":
            if line.lower().startswith("content-length:"):
                length = int(line.split(":")[1])
        asked = json.loads(await reader.readexactly(length))
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self.count += 1
        name = f"served_{self.count}"
        self.manager.register_result_handler(name, outputs.put_nowait)
        self.manager.add_request(input_ids=asked["prompt"], request_id=name, max_new_tokens=asked["max_tokens"], streaming=True)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        sent = 0
        while True:
            output = await outputs.get()
            for _ in output.generated_tokens[sent:]:
                writer.write(b'data: {"choices": [{"index": 0, "text": "x"}]}\n\n')
            sent = max(sent, len(output.generated_tokens))
            await writer.drain()
            if output.is_finished():
                break
        writer.write(f'data: {{"choices": [], "usage": {{"completion_tokens": {sent}}}}}\n\ndata: [DONE]\n\n'.encode())
        await writer.drain()
        writer.close()


def arrivals(kind: str, rate: float, seed: int) -> list[float]:
    """Seconds; `bursty`: gamma gaps with a coefficient of variation of 3."""
    draw = random.Random(seed)
    shape = 1.0 if kind == "poisson" else 1 / 9
    at, found = 0.0, []
    while at < LOAD_S:
        found.append(at)
        at += draw.gammavariate(shape, 1 / (rate * shape))
    return found


async def serve_load(manager: Any, folder: pathlib.Path, kind: str, rate: float, seed: int) -> None:
    """Serves one load that a client in another process sends."""
    draw = random.Random(seed + 100)
    path = folder / f"requests_{kind}.jsonl"
    rows = [
        {"start_s": round(at, 6), "prompt_tokens": draw.randint(*PROMPT_TOKENS), "output_tokens": draw.randint(*OUTPUT_TOKENS)}
        for at in arrivals(kind, rate, seed)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    server = await asyncio.start_server(Server(manager).answer, "127.0.0.1", 0, limit=1 << 24)
    port = server.sockets[0].getsockname()[1]
    client = await asyncio.create_subprocess_exec(
        sys.executable, str(LOAD), f"http://127.0.0.1:{port}", str(path), "-o", str(folder / f"bench_{kind}.json")
    )
    try:
        await asyncio.wait_for(client.wait(), 90)
    except TimeoutError:
        client.kill()
        raise SystemExit(f"{kind}: the client did not end within 90 s") from None
    server.close()


def about(torch: Any, transformers: Any, manager: Any) -> dict[str, Any]:
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,power.limit", "--format=csv,noheader"]
        found["nvidia_smi"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    settings = manager.continuous_batching_config
    found["settings"] = {field.name: str(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    found["attention"] = manager.model.config._attn_implementation
    return found


def write_steps(path: pathlib.Path, steps: Sequence[Step]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["phase", "prefill", "num_decodes", "decode_context", "begin_s", "prepare_s", "compute_s", "update_s", "traced"])
        for step in steps:
            chunks = " ".join(f"{query}+{context}{'' if ends else '-'}" for query, context, ends in step.chunks)
            times = (step.begin_s, step.prepared_s - step.begin_s, step.computed_s - step.prepared_s, step.end_s - step.computed_s)
            rows.writerow([step.phase, chunks, step.num_decodes, step.decode_context, *(f"{each:.9f}" for each in times), int(step.is_traced)])


def decode_time(recorder: Recorder) -> float:
    """Seconds of a decode step of about eight sequences, to choose a load that the engine can bear."""
    found = sorted(step.end_s - step.begin_s for step in recorder.steps if not step.chunks and 4 <= step.num_decodes <= 12 and not step.is_traced)
    return found[len(found) // 2] if found else 0.05


def measure(options: argparse.Namespace, folder: pathlib.Path, begun: float) -> None:
    import torch
    import transformers
    from transformers.generation.continuous_batching import continuous_api

    def since() -> float:
        return time.perf_counter() - begun

    print(f"{since():6.1f} s  torch {torch.__version__}, transformers {transformers.__version__}, {options.configs[0][0].name}", flush=True)
    model, content = load_model(torch, transformers, options)
    (folder / "config.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"{since():6.1f} s  model of {sum(each.numel() for each in model.parameters()) / 1e9:.2f}e9 parameters", flush=True)
    gc.collect()
    gc.freeze()  # as servers do: else a collection now and then goes through all that was imported, in the middle of a step
    recorder = Recorder(torch, folder)
    watch(continuous_api.ContinuousBatchProcessor, recorder)
    with manager_of(transformers, model, content["vocab_size"]) as manager:
        try:
            for decodes, prompt in ((2, 64), (16, 200)):
                run_batch(manager, recorder, f"warm_up_{decodes}", decodes, prompt, seed=0)
            (folder / "about.json").write_text(json.dumps(about(torch, transformers, manager), indent=1), encoding="utf-8")
            for index, (decodes, prompt) in enumerate(options.traced):
                run_batch(manager, recorder, f"b{decodes}_c{prompt}", decodes, prompt, traced=True, seed=index + 1)
                print(f"{since():6.1f} s  {decodes} x {prompt} traced", flush=True)
            for prompt in options.new_rows:
                for seed in (1, 2):
                    run_batch(manager, recorder, f"rows_{prompt}", 1, prompt, seed=seed, decode_steps=0)
            print(f"{since():6.1f} s  {len(options.new_rows)} prompts twice", flush=True)
            for index, (decodes, prompt) in enumerate(options.timed):
                if since() > options.budget - 2 * (LOAD_S + DRAIN_S):
                    print(f"left out for want of time: {options.timed[index:]}", flush=True)
                    break
                run_batch(manager, recorder, f"b{decodes}_c{prompt}", decodes, prompt, seed=100 + index)
                print(f"{since():6.1f} s  {decodes} x {prompt}", flush=True)
            rate = options.rate or 5.0 / (sum(OUTPUT_TOKENS) / 2 * decode_time(recorder))
            for seed, kind in enumerate(("poisson", "bursty"), start=1):
                recorder.start_phase(f"load_{kind}")
                asyncio.run(serve_load(manager, folder, kind, rate, seed))
                print(f"{since():6.1f} s  {kind} at {rate:.2f} requests/s", flush=True)
        finally:
            write_steps(folder / "steps.csv", recorder.steps)


def archive(folder: pathlib.Path, output: pathlib.Path, name: str) -> None:
    """What the folder holds as `<name>.tar`; what is over MOST_BYTES stands in `<name>.2.tar` and so on."""
    parts: list[list[tuple[str, bytes]]] = [[]]
    room = MOST_BYTES
    for each in sorted(folder.iterdir()):
        content, entry = each.read_bytes(), each.name
        if not entry.endswith(".gz") and len(content) > 1 << 20:
            content, entry = gzip.compress(content), f"{entry}.gz"
        if len(content) > room and parts[-1]:
            parts.append([])
            room = MOST_BYTES
        parts[-1].append((entry, content))
        room -= len(content) + 1024
    for number, part in enumerate(parts, start=1):
        path = output / (f"{name}.tar" if number == 1 else f"{name}.{number}.tar")
        with tarfile.open(path, "w") as packed:
            for entry, content in part:
                info = tarfile.TarInfo(entry)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
        print(f"written: {path}", flush=True)


def _cases(text: str) -> tuple[tuple[int, int], ...]:
    """1x128,4x1024"""
    return tuple((int(each.split("x")[0]), int(each.split("x")[1])) for each in text.split(",") if each)


def _text(cases: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{prompts}x{tokens}" for prompts, tokens in cases)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def _config(text: str) -> tuple[pathlib.Path, int]:
    """CONFIG.json or CONFIG.json:LAYERS; 0 layers are all."""
    path, _, layers = text.partition(":")
    return pathlib.Path(path), int(layers or 0)


def run_each(options: argparse.Namespace, begun: float) -> int:
    """A process for each config, since what libraries keep of one model would be known to the next; what one leaves of its share goes to the others."""
    failed = 0
    for index, (config, layers) in enumerate(options.configs):
        share = (options.budget - (time.perf_counter() - begun)) / (len(options.configs) - index)
        words = [f"{config}:{layers}", "-o", str(options.output), "--device", options.device, "--budget", f"{share:.1f}", "--rate", str(options.rate)]
        words += ["--traced", _text(options.traced), "--timed", _text(options.timed), "--new-rows", ",".join(map(str, options.new_rows))]
        failed += subprocess.run([sys.executable, __file__, *words], check=False).returncode != 0
    return min(failed, 1)


def main() -> int:
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(description="Runs transformers' continuous batching, times its steps and traces some.")
    parser.add_argument("configs", type=_config, nargs="+", metavar="CONFIG.json[:LAYERS]")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=530.0, metavar="S", help="seconds for all; timed batches beyond them are left out (530)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s of the loads (what five decodes at once come to)")
    parser.add_argument("--traced", type=_cases, default=TRACED, metavar="BxC,...")
    parser.add_argument("--timed", type=_cases, default=TIMED, metavar="BxC,...")
    parser.add_argument("--new-rows", type=_sizes, default=NEW_ROWS, metavar="N,...", help="prompts that are sent twice")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if len(options.configs) > 1:
        return run_each(options, begun)
    name = options.configs[0][0].name.removesuffix(".config.json").removesuffix(".json").split("--")[-1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure(options, pathlib.Path(folder), begun)
        finally:
            archive(pathlib.Path(folder), options.output, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
