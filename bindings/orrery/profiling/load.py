"""A load on a server: requests at their times, streamed, each token's time written down.

    requests = [Request(start_s=0.0, prompt=[17] * 512, output_tokens=64), ...]
    records = asyncio.run(replay("http://127.0.0.1:8000", "llama-3.1-8b", requests))
    write(path, "llama-3.1-8b", records)          # what `vllm bench serve --save-result --save-detailed` writes, which `orrery compare` reads

The server speaks OpenAI's completions with `stream`: vLLM, SGLang, TensorRT-LLM and `transformers serve` do. Prompts are token ids, so that
their lengths are those of the workload. The standard library is enough, so the file runs alone on any host: `python load.py URL REQUESTS.jsonl`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import pathlib
import random
import ssl
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from typing import Any

_MOST_LINE = 1 << 24  # bytes of one event of a stream
_VOCABULARY = 1000  # ids that every model has, past the special ones
_FIRST_ID = 100


@dataclasses.dataclass(frozen=True)
class Request:
    start_s: float  # after the first
    prompt: Sequence[int]  # token ids
    output_tokens: int


@dataclasses.dataclass
class Record:
    """What became of a request; times in seconds, `start_s` from the beginning of the load, `start_epoch_s` of the wall clock."""

    prompt_tokens: int
    output_tokens: int = 0
    start_s: float = 0.0
    start_epoch_s: float = 0.0
    token_s: list[float] = dataclasses.field(default_factory=list)  # of each event with text, from the start of the request
    error: str = ""


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Token ids that no other seed has, so that no prefix cache answers."""
    draw = random.Random(seed)
    return [_FIRST_ID + draw.randrange(_VOCABULARY) for _ in range(tokens)]


def requests_of(arrivals_s: Sequence[float], prompts: Sequence[int], outputs: Sequence[int], seed: int = 1) -> list[Request]:
    """Requests of these lengths in tokens, their prompts drawn."""
    return [
        Request(float(at), prompt_of(int(prompt), seed * 1_000_003 + index), int(output))
        for index, (at, prompt, output) in enumerate(zip(arrivals_s, prompts, outputs, strict=True))
    ]


async def replay(url: str, model: str, requests: Sequence[Request], *, timeout_s: float = 600.0, concurrency: int = 0) -> list[Record]:
    """Sends each request at its time; `concurrency` is the most at once (0: no limit), the others wait.

    A request that fails has its reason in `error`; what it received stays in the record.
    """
    target = _Target.of(url)
    begin = time.perf_counter()
    slots = asyncio.Semaphore(concurrency) if concurrency else None
    return list(await asyncio.gather(*(_one(target, model, request, begin, slots, timeout_s) for request in requests)))


async def _one(
    target: _Target, model: str, request: Request, begin: float, slots: asyncio.Semaphore | None, timeout_s: float
) -> Record:  # fmt: skip
    await asyncio.sleep(max(0.0, begin + request.start_s - time.perf_counter()))
    if slots is not None:
        await slots.acquire()
    record = Record(prompt_tokens=len(request.prompt))
    started = time.perf_counter()
    record.start_s, record.start_epoch_s = started - begin, time.time()
    try:
        await asyncio.wait_for(_stream(target, model, request, record, started), timeout_s)
    except TimeoutError:
        record.error = f"no end within {timeout_s:g} s"
    except (OSError, ValueError, EOFError) as error:
        record.error = f"{type(error).__name__}: {error}"
    finally:
        if slots is not None:
            slots.release()
    if not record.error and not record.token_s:
        record.error = "ended without a token"
    record.output_tokens = record.output_tokens or len(record.token_s)
    return record


async def _stream(target: _Target, model: str, request: Request, record: Record, started: float) -> None:
    body = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.output_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    reader, writer = await target.connect()
    try:
        writer.write(target.post("/v1/completions", json.dumps(body).encode()))
        await writer.drain()
        async for event in _events(reader):
            now = time.perf_counter() - started
            if event == "[DONE]":
                return
            found = json.loads(event)
            if not isinstance(found, dict):
                raise ValueError(f"found the event {event[:80]!r}; expected an object")
            if found.get("error"):
                raise ValueError(f"the server says {json.dumps(found['error'])[:300]}")
            if any(choice.get("text") is not None for choice in found.get("choices") or ()):
                record.token_s.append(now)
            usage = found.get("usage")
            if usage and usage.get("completion_tokens"):
                record.output_tokens = int(usage["completion_tokens"])
    finally:
        writer.close()


@dataclasses.dataclass(frozen=True)
class _Target:
    host: str
    port: int
    prefix: str
    tls: bool

    @staticmethod
    def of(url: str) -> _Target:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"found the server '{url}'; expected http://HOST:PORT or https://HOST:PORT")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return _Target(parts.hostname, parts.port or (443 if tls else 80), prefix, tls)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context, limit=_MOST_LINE)

    def post(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    status = (await reader.readline()).decode("latin-1").strip().split(maxsplit=2)
    if len(status) < 2 or not status[1].isdigit():
        raise ValueError("found no HTTP answer; expected an OpenAI-compatible server")
    headers = {}
    while (line := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip().lower()
    body = _chunks(reader) if "chunked" in headers.get("transfer-encoding", "") else _pieces(reader)
    if status[1] != "200":
        text = b"".join([piece async for piece in body]).decode("utf-8", "replace")
        raise ValueError(f"HTTP {' '.join(status[1:])}: {text[:300]}")
    rest = b""
    async for piece in body:
        rest += piece
        *lines, rest = rest.split(b"\n")
        for each in lines:
            if each.startswith(b"data:"):
                yield each[5:].decode("utf-8").strip()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(1 << 16):
        yield piece


def bench_of(model: str, records: Sequence[Record]) -> dict[str, Any]:
    """The records as `vllm bench serve --save-result --save-detailed` writes its own."""
    ended = [record for record in records if not record.error]
    last = max((record.start_s + record.token_s[-1] for record in ended), default=0.0)
    duration = last - min((record.start_s for record in ended), default=0.0)
    tokens = sum(record.output_tokens for record in ended)
    return {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        "backend": "openai",
        "label": "orrery profile load",
        "model_id": model,
        "num_prompts": len(records),
        "completed": len(ended),
        "duration": duration,
        "request_throughput": len(ended) / duration if duration > 0 else 0.0,
        "output_throughput": tokens / duration if duration > 0 else 0.0,
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [record.token_s[0] if record.token_s else 0.0 for record in records],
        "itls": [[later - first for first, later in zip(record.token_s, record.token_s[1:])] for record in records],
        "start_times": [record.start_s for record in records],
        "start_epoch_s": [record.start_epoch_s for record in records],
        "errors": [record.error for record in records],
    }


def write(path: pathlib.Path, model: str, records: Sequence[Record]) -> dict[str, Any]:
    """Writes `bench_of` and returns it."""
    found = bench_of(model, records)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def read_requests(path: pathlib.Path) -> list[Request]:
    """Requests of a JSON line each: start_s, prompt_tokens, output_tokens. Throws ValueError with the line of what is wrong."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            row = (float(found["start_s"]), int(found["prompt_tokens"]), int(found["output_tokens"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: {error!r}; expected start_s, prompt_tokens and output_tokens") from None
        if not row[0] >= 0 or row[1] < 1 or row[2] < 1:
            raise ValueError(f"{path}:{number}: found {line.strip()}; expected a start of 0 s or later and tokens of 1 or more")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: found no requests; expected a JSON line for each")
    return requests_of([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


def main() -> int:
    parser = argparse.ArgumentParser(description="Replays requests on an OpenAI-compatible server.")
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("requests", type=pathlib.Path, help="a JSON line each: start_s, prompt_tokens, output_tokens")
    parser.add_argument("--model", default="model")
    parser.add_argument("--concurrency", type=int, default=0)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("bench.json"))
    options = parser.parse_args()
    records = asyncio.run(replay(options.url, options.model, read_requests(options.requests), concurrency=options.concurrency))
    found = write(options.output, options.model, records)
    print(f"{found['completed']} of {found['num_prompts']} requests ended, {found['output_throughput']:.1f} tokens/s", file=sys.stderr)
    return 0 if found["completed"] == found["num_prompts"] else 1


if __name__ == "__main__":
    sys.exit(main())
