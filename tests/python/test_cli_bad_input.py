"""Every bad input: exit code 2, one clear message on stderr, no traceback, nothing written or overwritten."""

import pytest


def expect_refusal(workdir, result, *parts):
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: "), result.stderr
    for part in parts:
        assert part in result.stderr
    # Neither an output directory nor a temporary one stays behind.
    assert not (workdir.directory / "out").exists()
    assert not [path.name for path in workdir.directory.iterdir() if path.name.startswith(".")]


def test_the_small_scenario_itself_runs(workdir):
    result = workdir.run()
    assert result.returncode == 0, result.stderr
    assert (workdir.directory / "out" / "summary.json").is_file()


def test_a_missing_scenario_file(workdir):
    expect_refusal(workdir, workdir.orrery("run", "nowhere.yaml", "-o", "out"), "nowhere.yaml", "no such file")


def test_a_directory_instead_of_a_file(workdir):
    expect_refusal(workdir, workdir.orrery("run", ".", "-o", "out"), "is a directory")


def test_a_yaml_syntax_error(workdir):
    workdir.replace("{replicas: 2, tp: 2}", "{replicas: 2, tp: 2")
    expect_refusal(workdir, workdir.run(), "scenario.yaml:", "YAML syntax")


def test_an_empty_file(workdir):
    workdir.scenario.write_text("", encoding="utf-8")
    expect_refusal(workdir, workdir.run(), "empty")


def test_a_file_that_is_no_text(workdir):
    workdir.scenario.write_bytes(bytes(range(256)))
    expect_refusal(workdir, workdir.run(), "scenario.yaml")


@pytest.mark.parametrize(
    ("old", "new", "place", "parts"),
    [
        # key, place of the error, words of the message
        ("placement:", "placment:", "scenario.yaml:5:1", ("unknown key 'placment'", "did you mean 'placement'")),
        ("tp: 2", "tpp: 2", "scenario.yaml:5:26", ("unknown key 'tpp'", "did you mean 'tp'")),
        ("tpot: 50 ms", "tpot: 50 GB", "scenario.yaml:9:24", ("slo.tpot", "50 GB", "ms")),
        ("tpot: 50 ms", "tpot: 50", "scenario.yaml:9:24", ("slo.tpot", "50")),
        ("ttft: 2 s", "ttft: -2 s", "scenario.yaml:9:13", ("slo.ttft", "more than zero")),
        ("ttft: 2 s", "ttft: 0 s", "scenario.yaml:9:13", ("slo.ttft", "more than zero")),
        ("tp: 2", "tp: 0", "scenario.yaml:5:30", ("placement.tp", "found '0'", "from 1 to")),
        ("tp: 2", "tp: -4", "scenario.yaml:5:30", ("placement.tp", "found '-4'")),
        ("tp: 2", "tp: two", "scenario.yaml:5:30", ("placement.tp", "found 'two'", "whole number")),
        ("max_num_seqs: 64", "max_num_seqs: 0", "scenario.yaml:6:39", ("engine.max_num_seqs", "from 1 to")),
        ("max_num_seqs: 64", "stream_interval: 0", "scenario.yaml:6:42", ("engine.stream_interval", "from 1 to")),
        ("{trace: trace.csv}", "{closed_loop: {concurrency: 1, num_requests: 1, prompt_tokens: 8, output_tokens: 8, "
         "distinct_prompts: 0}}", "scenario.yaml:8:", ("closed_loop.distinct_prompts", "at least 1")),
        ("max_num_seqs: 64", "block_size: -16", "scenario.yaml:6:37", ("engine.block_size", "'-16'")),
        ("max_num_seqs: 64", "gpu_memory_utilization: 1.5", "scenario.yaml:6:49", ("at most 1",)),
        ("tp: 2", "tp: 3", "scenario.yaml:5:12", ("placement", "3")),  # 32 heads
        ("tp: 2", "tp: 8", "scenario.yaml:5:12", ("needs 16 GPUs", "has 8")),
        ("llama-3.1-8b", "llama-3.1-9b", "scenario.yaml:2:17", ("unknown model 'llama-3.1-9b'", "'llama-3.1-8b'")),
        ("llama-3.1-8b", "models/none.json", "scenario.yaml:2:17", ("models/none.json",)),
        ("hgx-h200", "hgx-h201", "scenario.yaml:3:10", ("unknown machine 'hgx-h201'", "hgx-h200")),
        ("vllm-0.24.0", "vllm-0.25.0", "scenario.yaml:4:11", ("unknown provider", "'vllm-0.24.0'")),
        ("profile: vllm", "profile: vlm", "scenario.yaml:6:19", ("unknown engine profile", "'vllm'")),
        ("weights: bf16", "weights: bf17", "scenario.yaml:2:40", ("model.weights", "bf17", "bf16")),
        ("round_robin", "random", "scenario.yaml:7:9", ("router", "'random'", "round_robin")),
        ("trace: trace.csv", "trace: nowhere.csv", "scenario.yaml:8:19", ("nowhere.csv",)),
        ("{trace: trace.csv}", "{}", "scenario.yaml:8:11", ("workload", "closed_loop")),
        ("trace: trace.csv", "trace: trace.csv, mooncake: x", "", ("both 'trace' and 'mooncake'",)),
        ("seed: 1", "seed: 1\nseed: 2", "scenario.yaml:11:1", ("'seed' appears twice",)),
        ("machine: hgx-h200\n", "", "scenario.yaml:1:1", ("missing key 'machine'",)),
        ("slo: {ttft: 2 s, tpot: 50 ms}", "slo: fast", "scenario.yaml:9:6", ("found 'fast'", "mapping")),
        ("seed: 1", "step_level: exact", "scenario.yaml:10:13", ("step_level", "closed_form")),
        ("seed: 1", "seed: -1", "scenario.yaml:10:7", ("seed", "at least 0")),
    ],
)
def test_a_scenario_that_says_something_impossible(workdir, old, new, place, parts):
    workdir.replace(old, new)
    expect_refusal(workdir, workdir.run(), place, *parts)


def test_a_model_that_does_not_fit(workdir):
    # Llama-3.1-405B in bf16 needs 2 * 406e9 / 2 bytes = 378 GiB on each of two GPUs; 0.9 * 141 GiB = 127 GiB.
    workdir.replace("llama-3.1-8b", "llama-3.1-405b")
    expect_refusal(workdir, workdir.run(), "scenario.yaml:5:1", "placement", "378 GiB", "127 GiB", "would fit")


def test_a_model_whose_parts_are_not_supported_says_which(workdir):
    workdir.replace("llama-3.1-8b", "broken.json")
    (workdir.directory / "broken.json").write_text('{"model_type": "llama", "hidden_size": 64}', encoding="utf-8")
    expect_refusal(workdir, workdir.run(), "broken.json")


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("ContextTokens", "Prompt", ("trace.csv", "ContextTokens")),
        ("18:00:01.2500000,879", "17:59:59.0000000,879", ("trace.csv", "4")),  # unsorted: line 4
        ("2023-11-16 18:00:00.5000000", "nan", ("trace.csv", "3", "nan")),
        ("2023-11-16 18:00:00.5000000", "inf", ("trace.csv", "3", "inf")),
        ("396,109", "396,0", ("0",)),
        ("396,109", "0,109", ("0",)),
        ("396,109", "-5,109", ("-5",)),
        ("396,109", "396", ("trace.csv", "3")),
        ("396,109", "many,109", ("trace.csv", "3", "many")),
    ],
)
def test_a_trace_with_a_bad_row(workdir, old, new, parts):
    text = workdir.trace.read_text(encoding="utf-8")
    assert old in text
    workdir.trace.write_text(text.replace(old, new), encoding="utf-8")
    expect_refusal(workdir, workdir.run(), *parts)


def test_an_empty_trace(workdir):
    workdir.trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n", encoding="utf-8")
    expect_refusal(workdir, workdir.run(), "trace.csv")


def test_a_request_longer_than_the_kv_cache(workdir):
    # 130,000 + 44 tokens fit Llama's 131,072 positions, but not GPUs of which 12 % is to be used:
    # 0.12 * 151 GB = 18.2 GB less 8 GB of weights and at least 2 GiB kept aside is 8 GB, and a token
    # takes 32 layers * 2 * 4 heads * 128 * 2 B = 65.5 kB on each of two GPUs: 122,000 at most.
    workdir.replace("max_num_seqs: 64", "gpu_memory_utilization: 0.12")
    workdir.trace.write_text(workdir.trace.read_text(encoding="utf-8").replace("374,44", "130000,44"), encoding="utf-8")
    expect_refusal(workdir, workdir.run(), "KV")


def test_a_request_longer_than_the_model_allows(workdir):
    workdir.trace.write_text(workdir.trace.read_text(encoding="utf-8").replace("374,44", "200000,44"), encoding="utf-8")
    expect_refusal(workdir, workdir.run(), "200")


def test_an_unknown_kernel_in_a_provider(workdir):
    provider = workdir.directory / "provider"
    provider.mkdir()
    (provider / "warp_drive.csv").write_text("dtype,m,latency_us\nbf16,1,1.0\n", encoding="utf-8")
    workdir.replace("vllm-0.24.0", "./provider")
    expect_refusal(workdir, workdir.run(), "warp_drive")


def test_a_provider_with_a_malformed_row(workdir):
    provider = workdir.directory / "provider"
    provider.mkdir()
    (provider / "gemm.csv").write_text("not,a,table\n1,2\n", encoding="utf-8")
    workdir.replace("vllm-0.24.0", "./provider")
    expect_refusal(workdir, workdir.run(), "gemm.csv")


@pytest.mark.parametrize(
    ("assignment", "part"),
    [
        ("placement.tpp=2", "did you mean 'tp'"),
        ("placement.tp=0", "found '0'"),
        ("placement", "expected key.path=value"),
        ("seed.x=1", "not a mapping"),
        ("placement=[1", "YAML syntax"),
    ],
)
def test_an_override_that_cannot_be(workdir, assignment, part):
    expect_refusal(workdir, workdir.run("--set", assignment), "--set", part)


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_output_directory_that_exists_is_left_as_it_is(workdir):
    out = workdir.directory / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    result = workdir.run()
    assert result.returncode == 2
    assert "exists" in result.stderr and "--force" in result.stderr
    assert files_of(out) == {"notes.txt": b"mine"}


def test_force_replaces_an_earlier_run_and_nothing_else(workdir):
    out = workdir.directory / "out"
    assert workdir.run().returncode == 0
    (out / "summary.json").write_text("{}", encoding="utf-8")
    assert workdir.run("--force").returncode == 0
    assert (out / "summary.json").stat().st_size > 100

    other = workdir.directory / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine", encoding="utf-8")
    result = workdir.orrery("run", workdir.scenario, "-o", other, "--force")
    assert result.returncode == 2
    assert "no run directory" in result.stderr
    assert files_of(other) == {"notes.txt": b"mine"}


def test_a_failed_run_with_force_keeps_the_earlier_one(workdir):
    assert workdir.run().returncode == 0
    before = files_of(workdir.directory / "out")
    workdir.trace.write_text("TIMESTAMP\n", encoding="utf-8")
    result = workdir.run("--force")
    assert result.returncode == 2
    assert files_of(workdir.directory / "out") == before


@pytest.mark.parametrize("arguments", [["run"], ["fly"], ["run", "x.yaml", "--threads", "0"], ["run", "x.yaml", "--warp"]])
def test_bad_usage(workdir, arguments):
    result = workdir.orrery(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "usage:" in result.stderr


def test_a_report_of_something_that_is_no_run_directory(workdir):
    result = workdir.orrery("report", workdir.directory)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr


def test_a_directory_that_cannot_be_written_fails_without_a_traceback(workdir):
    (workdir.directory / "file").write_text("", encoding="utf-8")
    result = workdir.orrery("run", workdir.scenario, "-o", "file/out", "--no-report")
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
