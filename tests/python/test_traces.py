"""Traces in other programs' formats: each of the files below, written by hand as its program writes it, holds the same three requests."""

import gzip
import io
import json

import orrery
import pandas
import pytest

ARRIVALS = [0.0, 0.5, 2.0]
PROMPTS = [100, 20, 300]
OUTPUTS = [10, 1, 5]
ROWS = list(zip(ARRIVALS, PROMPTS, OUTPUTS))


def lines(header, row):
    return "\n".join([header, *(row(*request) for request in ROWS)]) + "\n"


def json_lines(row):
    return "".join(json.dumps(row(*request)) + "\n" for request in ROWS)


def bench(start, *, lists):
    """The common part of what vLLM's and SGLang's clients write with single requests; the last failed."""
    return {
        "completed": 3, "request_throughput": 1.5, "output_throughput": 8.0, "mean_ttft_ms": 100.0, "mean_tpot_ms": 10.0,
        "input_lens": [*PROMPTS, 7], "output_lens": [*OUTPUTS, 0], "ttfts": [0.1, 0.1, 0.1, 0.0], "errors": ["", "", "", "refused"],
        "itls": [[0.01] * (n - 1) for n in OUTPUTS] + [[]], **({"start_times": [start + at for at in ARRIVALS] + [start + 1]} if lists else {}),
    }  # fmt: skip


VLLM = {"date": "20250101-000000", "endpoint_type": "openai", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": 4,
        **bench(5000.25, lists=True)}  # fmt: skip
SGLANG = {"backend": "sglang", "dataset_name": "random", "request_rate": 1.0, **bench(0, lists=False)}
GUIDELLM = {"benchmarks": [{
    "config": {"backend": {"model": "m"}},
    "metrics": {
        "requests_per_second": {"successful": {"mean": 1.5}}, "output_tokens_per_second": {"successful": {"mean": 8.0}},
        "request_totals": {"successful": 3, "errored": 0, "incomplete": 0},
        "request_latency": {"successful": {"mean": 0.2, "percentiles": {"p50": 0.2, "p90": 0.2, "p99": 0.2}}},
    },
    "requests": {"successful": [
        {"request_start_time": 1.7e9 + at, "prompt_tokens": prompt, "output_tokens": output, "time_to_first_token_ms": 100.0,
         "inter_token_latency_ms": 10.0, "request_latency": 0.2}
        for at, prompt, output in ROWS
    ]},
}]}  # fmt: skip


def aiperf(at, prompt, output):
    return {
        "metadata": {"request_start_ns": 1_700_000_000_000_000_000 + int(at * 1e9), "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": prompt, "unit": "tokens"}, "output_sequence_length": {"value": output, "unit": "tokens"},
            "time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 200.0, "unit": "ms"},
        },
    }  # fmt: skip


def parquet():
    buffer = io.BytesIO()
    pandas.DataFrame({"arrived_at": ARRIVALS, "num_prefill_tokens": PROMPTS, "num_decode_tokens": OUTPUTS}).to_parquet(buffer)
    return buffer.getvalue()


TIMES = {0.0: "2023-11-16 23:59:59.500", 0.5: "2023-11-17 00:00:00.000", 2.0: "2023-11-17 00:00:01.500"}
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
CONVERSATIONS = [{"id": "x", "conversations": [{"from": "human", "value": "q" * 4 * prompt}, {"from": "gpt", "value": "a" * 4 * output},
                                               {"from": "human", "value": "more"}]} for _, prompt, output in ROWS]  # fmt: skip
MAPPED = {"columns": {"arrival": "ts_ms", "prompt": "isl", "output": "osl"}, "time_unit": "ms"}
DRAWN = {"requests_per_s": 4}

# Name of the file: its content, and keys beside `trace:`.
FILES = {
    "own.csv": (lines("arrival_s,prompt_tokens,output_tokens", lambda at, p, o: f"{at},{p},{o}"), {}),
    "azure.csv": (lines("TIMESTAMP,ContextTokens,GeneratedTokens", lambda at, p, o: f"{TIMES[at]}0000,{p},{o}"), {}),
    "azure_2024.csv": (lines("TIMESTAMP,ContextTokens,GeneratedTokens", lambda at, p, o: f"{TIMES[at]}+00:00,{p},{o}"), {}),
    "utc.csv": (lines("TIMESTAMP,ContextTokens,GeneratedTokens", lambda at, p, o: f"{TIMES[at].replace(' ', 'T')}Z,{p},{o}"), {}),
    "mooncake.jsonl": (json_lines(lambda at, p, o: {"timestamp": int(at * 1000), "input_length": p, "output_length": o, "hash_ids": [p]}), {}),
    "no_hashes.jsonl": (json_lines(lambda at, p, o: {"timestamp": int(at * 1000), "input_length": p, "output_length": o}), {}),
    "qwen_traceA_blksz_16.jsonl": (json_lines(lambda at, p, o: {"chat_id": p, "parent_chat_id": -1, "timestamp": at, "input_length": p,
        "output_length": o, "type": "text", "turn": 1, "hash_ids": list(range(-(-p // 16)))}), {}),
    "vidur.csv": (lines("arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
                        lambda at, p, o: f"{at + 7},{p}.0,{o},{p + o},{p / o}"), {}),
    "burstgpt.csv": (lines(BURSTGPT, lambda at, p, o: f"{at + 5},ChatGPT,{p},{o},{p + o},Conversation log"), {}),
    "sharegpt.json": (json.dumps(CONVERSATIONS), {"chars_per_token": 4, **DRAWN}),
    "vllm.json": (json.dumps(VLLM), {}),
    "sglang.jsonl": (json.dumps({**SGLANG, "dataset_name": "warm"}) + "\n" + json.dumps(SGLANG) + "\n", DRAWN),
    "guidellm.json": (json.dumps(GUIDELLM, indent=1), {}),
    "guidellm_0.3.json": (json.dumps(GUIDELLM).replace("request_start_time", "start_time"), {}),
    "gateway.jsonl": (json_lines(lambda at, p, o: {"created": 1.7e9 + at, "usage": {"prompt_tokens": p, "completion_tokens": o, "details": {"x": 1}}}),
                      {"columns": {"arrival": "created", "prompt": "usage.prompt_tokens", "output": "usage.completion_tokens"}}),
    "profile_export.jsonl": (json_lines(aiperf), {}),
    "table.parquet": (parquet(), {}),
    "mapped.csv": (lines("ts_ms,model,isl,osl", lambda at, p, o: f"{at * 1000},m,{p},{o}"), MAPPED),
    "mapped.jsonl": (json_lines(lambda at, p, o: {"ts_ms": at * 1000, "isl": p, "osl": o, "tags": ["a"]}), MAPPED),
    "semicolons.csv": (lines("prompt_tokens;arrival_s;output_tokens", lambda at, p, o: f"{p};{at};{o}"), {}),
    "offsets.csv": (lines("when\tin\tout", lambda at, p, o: f"{TIMES[at].replace(' ', 'T')}+02:00\t{p}\t{o}"),
                    {"columns": {"arrival": "when", "prompt": "in", "output": "out"}}),
}  # fmt: skip


def as_bytes(content):
    return content if isinstance(content, bytes) else content.encode()


def scenario(path, **keys):
    return orrery.Scenario(model="llama-3.1-8b", machine="single-h200", provider="vllm-0.24.0", workload={"trace": str(path), **keys})


def served(path, **keys):
    result = orrery.simulate(scenario(path, **keys))
    columns = result.requests.columns()
    order = columns["id"].argsort()
    return result, {name: columns[name][order] for name in ("arrival_s", "prompt_tokens", "output_tokens")}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", FILES)
def test_the_requests_of_every_format_are_those_of_the_file(tmp_path, name, packed):
    content, keys = FILES[name]
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(as_bytes(content)) if packed else as_bytes(content))
    _, columns = served(path, **keys)
    if "requests_per_s" not in keys:
        assert columns["arrival_s"] == pytest.approx(ARRIVALS, abs=1e-6)
    assert columns["prompt_tokens"].tolist() == PROMPTS
    assert columns["output_tokens"].tolist() == OUTPUTS


def test_a_packed_mooncake_trace_keeps_the_blocks_that_prompts_share(tmp_path):
    trace = "".join(json.dumps({"timestamp": 1000 * i, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]}) + "\n" for i in range(2))
    packed, without = tmp_path / "m.jsonl.gz", tmp_path / "n.jsonl"
    packed.write_bytes(gzip.compress(trace.encode()))
    without.write_text(trace.replace(', "hash_ids": [1, 2]', ""), encoding="utf-8")
    found = [orrery.simulate(scenario(path).replace(engine__enable_prefix_caching=True)).summary.cached_tokens for path in (packed, without)]
    assert found[0] > 0  # the second prompt finds the first one's
    assert found[1] == 0  # nobody says that they are the same


def test_a_packed_file_whose_rows_are_wrong_is_named_as_it_is(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,zero,1\n"))
    with pytest.raises(orrery.ScenarioError, match=r"t\.csv\.gz:3: prompt_tokens is \"zero\""):
        served(path)


def test_arrivals_that_are_drawn_are_those_of_poisson_and_said(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(CONVERSATIONS), encoding="utf-8")
    result, columns = served(path, chars_per_token=4, requests_per_s=4)
    drawn = {"requests_per_s": 4, "num_requests": 3, "prompt_tokens": 1, "output_tokens": 1}
    poisson = orrery.simulate(scenario(path).replace(workload={"poisson": drawn})).requests.columns()["arrival_s"]
    assert sorted(columns["arrival_s"]) == pytest.approx(sorted(poisson - poisson.min()))  # the first of a trace comes at 0
    assert any("Poisson at 4/s" in warning for warning in result.warnings)
    assert any("no tokenizer's" in warning for warning in result.warnings)


def test_requests_are_sorted_where_that_is_asked_and_it_is_said(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n2,300,5\n0,100,10\n0.5,20,1\n", encoding="utf-8")
    with pytest.raises(orrery.ScenarioError, match=r"v\.csv:3: .*before that of the request above; expected ascending ones, or sort: true"):
        served(path)
    result, columns = served(path, sort=True)
    assert columns["arrival_s"].tolist() == ARRIVALS
    assert columns["prompt_tokens"].tolist() == PROMPTS
    assert any("sorted by arrival, 1 stood after a later one" in warning for warning in result.warnings)


def test_requests_without_a_length_are_left_out_where_that_is_asked_and_counted(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text(BURSTGPT + "\n5,ChatGPT,100,10,110,x\n5.2,ChatGPT,7,0,7,x\n5.5,ChatGPT,20,1,21,x\n7,ChatGPT,300,5,305,x\n", encoding="utf-8")
    with pytest.raises(orrery.ScenarioError, match=r'b\.csv:3: Response tokens is "0".*drop_invalid: true'):
        served(path)
    result, columns = served(path, drop_invalid=True)
    assert columns["arrival_s"] == pytest.approx(ARRIVALS)
    assert columns["output_tokens"].tolist() == OUTPUTS
    assert any("1 of 4 requests have no length" in warning for warning in result.warnings)


def test_requests_of_a_benchmark_that_failed_are_left_out_and_counted(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(VLLM), encoding="utf-8")
    result, _ = served(path)
    assert any("1 of 4 requests failed" in warning for warning in result.warnings)


def test_num_requests_and_rate_scale_are_of_every_format(tmp_path):
    path = tmp_path / "vidur.csv"
    path.write_text(FILES["vidur.csv"][0], encoding="utf-8")
    _, columns = served(path, num_requests=2, rate_scale=2)
    assert columns["arrival_s"].tolist() == [0, 0.25]
    with pytest.raises(orrery.ScenarioError, match="holds 3 requests; expected num_requests of at most that, found 4"):
        served(path, num_requests=4)


def test_the_scenario_of_a_run_reads_the_same_trace_again(tmp_path):
    path = tmp_path / "mapped.csv"
    path.write_text(FILES["mapped.csv"][0], encoding="utf-8")
    written = scenario(path, **MAPPED, sort=True, drop_invalid=True)
    again = orrery.Scenario.from_yaml(written.to_yaml())
    assert again == written
    assert orrery.simulate(again).summary.ttft_s == orrery.simulate(written).summary.ttft_s


@pytest.mark.parametrize("content", [
    json.dumps({"input_lens": [100] * 300_000}), json.dumps([[1] * 300_000]), json.dumps({"x" * 1_000_000: 1}), "x" * 1_000_000,
    "arrived_at,num_prefill_tokens,num_decode_tokens\n0," + "9" * 1_000_000 + ",1\n", "a,b\n" + "1," * 500_000 + "\n",
    json.dumps([{"conversations": "x" * 1_000_000}]), json.dumps({**VLLM, "input_lens": ["x" * 1_000_000] * 4}),
    json.dumps([{"timestamp": "x" * 1_000_000, "input_length": 1, "output_length": 1}]),
], ids=["object", "list", "key", "word", "number", "cells", "conversation", "benchmark", "time"])  # fmt: skip
def test_an_error_never_repeats_the_file(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(orrery.ScenarioError) as error:
        served(path, chars_per_token=4)
    assert "t.json" in str(error.value)
    assert len(str(error.value)) < 1200


def test_a_list_of_requests_is_a_workload():
    requests = [{"arrival_s": at, "prompt_tokens": prompt, "output_tokens": output, "user": "u"} for at, prompt, output in ROWS]
    service = orrery.Scenario(model="llama-3.1-8b", machine="single-h200", provider="vllm-0.24.0", workload=requests)
    columns = orrery.simulate(service).requests.columns()
    assert sorted(columns["prompt_tokens"].tolist()) == sorted(PROMPTS)
    with pytest.raises(orrery.ScenarioError, match=r"workload\.requests:1: found a mapping without output_tokens"):
        service.replace(workload=[{"arrival_s": 0, "prompt_tokens": 1}])


def test_a_search_reads_a_foreign_trace_too(tmp_path):
    path = tmp_path / "vidur.csv"
    path.write_text(FILES["vidur.csv"][0], encoding="utf-8")
    asked = scenario(path).replace(slo={"ttft": "5 s", "tpot": "100 ms"})
    answer = orrery.explore(asked, search={"gpus": 1}, threads=1)
    assert answer.best is not None
