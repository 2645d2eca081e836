"""The load generator against a small server, and the recipes: `orrery profile`."""

import asyncio
import contextlib
import json
import pathlib
import subprocess
import sys
import threading

import numpy as np
import orrery
import pytest
from orrery import cli
from orrery.compare import bench_files
from orrery.profiling import load, recipe


class Server:
    """OpenAI's completions: the first token after `first_s`, each further one after `gap_s`; `fault` breaks it."""

    def __init__(self, *, first_s=0.03, gap_s=0.01, is_chunked=False, fault=""):
        self.first_s, self.gap_s, self.is_chunked, self.fault = first_s, gap_s, is_chunked, fault
        self.asked, self.most_at_once, self.now = [], 0, 0

    async def answer(self, reader, writer):
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        with contextlib.suppress(ConnectionError):
            await self._answer(reader, writer)
        self.now -= 1
        writer.close()

    async def _answer(self, reader, writer):
        length = 0
        while (line := (await reader.readline()).decode().strip()) != "":
            if line.lower().startswith("content-length:"):
                length = int(line.split(":")[1])
        asked = json.loads(await reader.readexactly(length))
        self.asked.append(asked)
        if self.fault == "busy":
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nno room")
            return await writer.drain()
        head = b"Transfer-Encoding: chunked\r\n" if self.is_chunked else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for token in range(asked["max_tokens"]):
            await asyncio.sleep(self.first_s if token == 0 else self.gap_s)
            if self.fault == "error" and token == 1:
                return await self._send(writer, {"error": {"message": "out of memory"}})
            if self.fault == "silent":
                continue
            if self.fault == "cut" and token == 2:
                return writer.write(b'zz\r\ndata: {"choi' if self.is_chunked else b"")
            await self._send(writer, {"choices": [{"index": 0, "text": "x"}]})
        await self._send(writer, {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}})
        await self._send(writer, "[DONE]")
        if self.is_chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _send(self, writer, content):
        data = b"data: " + (content if isinstance(content, str) else json.dumps(content)).encode() + b"\n\n"
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n" if self.is_chunked else data)
        await writer.drain()


@contextlib.contextmanager
def serving(server):
    """The server in a thread of its own; its address."""
    loop = asyncio.new_event_loop()
    started = loop.run_until_complete(asyncio.start_server(server.answer, "127.0.0.1", 0, limit=1 << 24))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        started.close()
        loop.close()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_compare_reads_the_times_of_every_token(tmp_path, is_chunked):
    server = Server(is_chunked=is_chunked)
    with serving(server) as url:
        requests = load.requests_of([0.0, 0.05, 0.1], [7, 100, 3000], [5, 8, 1])
        load.write(tmp_path / "bench.json", "toy", asyncio.run(load.replay(url, "toy", requests)))
    bench = bench_files.read(tmp_path / "bench.json")
    assert (bench.model, bench.num_requests, bench.num_failed) == ("toy", 3, 0)
    assert list(bench.requests["prompt_tokens"]) == [7, 100, 3000] and list(bench.requests["output_tokens"]) == [5, 8, 1]
    assert len(bench.itl_s) == 4 + 7 + 0
    # the server waits as long at least; a busy machine may take longer
    assert (bench.requests["ttft_s"] >= server.first_s).all()
    assert (bench.requests["tpot_s"][:2] >= server.gap_s * 0.9).all() and np.isnan(bench.requests["tpot_s"][2])
    assert (np.diff(bench.requests["start_s"]) >= 0.04).all()
    assert sorted(len(asked["prompt"]) for asked in server.asked) == [7, 100, 3000]
    assert all(asked["stream"] and asked["ignore_eos"] for asked in server.asked)


def test_no_two_prompts_share_a_prefix():
    prompts = [request.prompt for request in load.requests_of([0.0] * 50, [32] * 50, [1] * 50)]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 50


def test_concurrency_holds_requests_back():
    server = Server()
    with serving(server) as url:
        records = asyncio.run(load.replay(url, "toy", load.requests_of([0.0] * 6, [4] * 6, [3] * 6), concurrency=2))
    assert server.most_at_once == 2 and all(not record.error for record in records)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("busy", "HTTP 503 Service Unavailable: no room"), ("error", "out of memory"), ("silent", "ended without a token"), ("cut", "invalid literal")],
)
def test_a_request_that_fails_says_why_and_counts_as_failed(tmp_path, fault, said):
    with serving(Server(is_chunked=True, fault=fault)) as url:
        records = asyncio.run(load.replay(url, "toy", load.requests_of([0.0], [4], [4])))
    assert said in records[0].error
    found = load.bench_of("toy", records)
    assert (found["completed"], found["num_prompts"], found["request_throughput"]) == (0, 1, 0.0)


def test_a_server_that_is_not_there_or_too_slow_is_named(capsys, tmp_path):
    [record] = asyncio.run(load.replay("http://127.0.0.1:9", "toy", load.requests_of([0.0], [4], [4])))
    assert "Connect" in record.error or "refused" in record.error
    with serving(Server(first_s=5.0)) as url:
        [record] = asyncio.run(load.replay(url, "toy", load.requests_of([0.0], [4], [4]), timeout_s=0.1))
        assert record.error == "no end within 0.1 s"
    with pytest.raises(ValueError, match="expected http://HOST:PORT"):
        asyncio.run(load.replay("ftp://x", "toy", load.requests_of([0.0], [4], [4])))
    (tmp_path / "requests.jsonl").write_text('{"start_s": 0, "prompt_tokens": 4, "output_tokens": 4}\n', encoding="utf-8")
    words = ["profile", "load", "http://127.0.0.1:9", "--requests", str(tmp_path / "requests.jsonl"), "-o", str(tmp_path / "bench.json")]
    assert cli.main(words) == 1
    assert "failed: 1 requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["{", '{"start_s": 0}', '{"start_s": -1, "prompt_tokens": 1, "output_tokens": 1}', '{"start_s": 0, "prompt_tokens": 0, "output_tokens": 1}', ""],
)
def test_requests_that_cannot_be_are_refused_with_their_line(tmp_path, line):
    path = tmp_path / "requests.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"requests.jsonl(:1)?: .*expected"):
        load.read_requests(path)


def scenario(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(
        """model: {config: llama-3.2-1b}
machine: single-h200
provider: none
engine: {profile: vllm}
workload: {poisson: {requests_per_s: 40, num_requests: 12, prompt_tokens: 60, output_tokens: 6}}
seed: 1
""",
        encoding="utf-8",
    )
    return path


def test_a_scenarios_requests_are_replayed_and_compared(tmp_path, capsys):
    path = scenario(tmp_path)
    with serving(Server(gap_s=0.002)) as url:
        assert cli.main(["profile", "load", url, "--run", str(path), "-o", str(tmp_path / "bench.json")]) == 0
        assert cli.main(["profile", "load", url, "--run", str(path), "-o", str(tmp_path / "bench.json")]) == 2  # it exists
    bench = bench_files.read(tmp_path / "bench.json")
    simulated = orrery.simulate(orrery.load(path)).requests
    assert sorted(bench.requests["prompt_tokens"]) == sorted(simulated["prompt_tokens"])
    capsys.readouterr()
    assert cli.main(["compare", str(path), str(tmp_path / "bench.json")]) == 0
    assert "ttft" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_recipe_is_a_script_with_its_requests_and_client(tmp_path, engine, capsys):
    folder = tmp_path / "recipe"
    assert cli.main(["profile", "recipe", str(scenario(tmp_path)), "--engine", engine, "-o", str(folder)]) == 0
    subprocess.run(["bash", "-n", str(folder / "trace.sh")], check=True)
    text = (folder / "trace.sh").read_text(encoding="utf-8")
    phases = text.split("for phase in ")[1].split(";")[0].split()
    assert phases
    for phase in phases:
        for name in (f"{phase}.jsonl", f"{phase}.untraced.jsonl"):
            decodes, prompt = (int(part[1:]) for part in phase.split("_"))
            sent = load.read_requests(folder / "requests" / name)
            assert len(sent) == decodes and {len(request.prompt) for request in sent} == {prompt}
    # the client beside the script needs nothing of orrery
    help_text = subprocess.run([sys.executable, "-I", str(folder / "load.py"), "--help"], capture_output=True, text=True, check=True).stdout
    assert "OpenAI-compatible" in help_text
    assert cli.main(["profile", "recipe", str(scenario(tmp_path)), "--engine", engine, "-o", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err


def test_the_script_runs_against_a_server(tmp_path):
    folder = tmp_path / "recipe"
    assert cli.main(["profile", "recipe", str(scenario(tmp_path)), "--engine", "trtllm", "-o", str(folder)]) == 0
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nsys").write_text('#!/bin/sh\necho "$@" >> "$CALLS"\n', encoding="utf-8")
    (tools / "nsys").chmod(0o755)
    calls = tmp_path / "calls"
    with serving(Server(first_s=0.001, gap_s=0.001)) as url:
        environment = {"PATH": f"{tools}:{pathlib.Path(sys.executable).parent}:/usr/bin:/bin", "URL": url, "CALLS": str(calls)}
        subprocess.run([str(folder / "trace.sh")], env=environment, check=True, capture_output=True)
    phases = (folder / "trace.sh").read_text(encoding="utf-8").split("for phase in ")[1].split(";")[0].split()
    said = calls.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("start ") for line in said) == len(phases) == sum(line.startswith("export ") for line in said)
    assert bench_files.read(folder / "bench" / f"{phases[0]}.json").num_failed == 0


def test_phases_cover_what_a_run_has(tmp_path):
    run = orrery.finished_run.open_run(scenario(tmp_path))
    phases = recipe.phases_of(run)
    most = max(run.steps()["num_decodes"])
    assert max(phase.decodes for phase in phases) >= most * 0.5 and min(phase.decodes for phase in phases) == 1
    assert recipe.Phase(1, 60) in phases
