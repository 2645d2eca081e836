"""`orrery emit`: commands, manifests and benchmarks say what the plan says, in options that the engine's version has."""

import json
import os
import pathlib
import re
import shlex
import stat
import subprocess
import textwrap

import pytest
from orrery import cli, finished_run
from orrery.emit import benchmark, flags, llmd, plan, written, yaml_text
from orrery.emit.deployment import deployment_of, processes
from orrery.emit.engines import ENGINES
from orrery.report import resolved_scenario

ROOT = pathlib.Path(__file__).resolve().parents[2]
DENSE = """question: q
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 4, num_requests: 12, prompt_tokens: 512, output_tokens: 16}}
"""
EXPERTS = """question: q
model: {config: qwen3-30b-a3b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {closed_loop: {concurrency: 4, num_requests: 8, prompt_tokens: {min: 96, max: 160}, output_tokens: 8}}
"""
APART = ["disaggregation={prefill: {replicas: 2, tp: 2}, decode: {replicas: 1, tp: 2, max_num_seqs: 64}}"]


def plan_of(tmp_path, text=DENSE, sets=(), model=None):
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    return plan.plan_of(finished_run.open_run(file, sets), model)


def commands(text, program):
    """The word lists of the commands of a script that start `program`, without variables before and redirections behind."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if re.search(rf"(^|\s){re.escape(program)}(\s|$)", line) and not line.lstrip().startswith("#")]
    return [[word for word in shlex.split(line.partition(" > ")[0]) if not re.match(r"[A-Z_]+=", word)] for line in lines]


def value_of(words, option):
    return words[words.index(option) + 1]


def of_engine(tmp_path, engine, **changes):
    text, notes = written.written(plan_of(tmp_path, **changes), engine)
    return text, " ".join(notes)


def documents(text):
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [resolved_scenario.parse(part, pathlib.Path("out.yaml")) for part in body.split("---\n") if part.strip()]


# --- tables of options


@pytest.mark.parametrize("name", flags.names())
def test_a_table_names_versions_in_order_and_its_source(name):
    table = flags.table(name)
    assert list(table.versions) == sorted(table.versions, key=flags.order)
    assert table.default in table.versions
    assert table.source and table.flags
    for flag in table.flags.values():
        assert flag.takes in ("count", "number", "text", "json", "switch", "toggle", "choice", "list", "settings")
        assert (flag.takes == "choice") == bool(flag.values)
        for version in (flag.since, flag.until, *flag.values.values()):
            assert version == "" or version in table.versions


def test_versions_are_ordered_as_they_were_released():
    ordered = ["0.4.9", "0.4.9.post6", "0.5.3rc2", "0.5.3", "0.5.14", "1.3.0rc9", "1.3.0rc20", "1.3.0"]
    assert sorted(ordered, key=flags.order) == ordered


def test_an_option_that_a_version_lacks_is_refused_with_the_one_that_has_it():
    table = flags.table("vllm")
    with pytest.raises(flags.UnknownFlag, match="0.14.0 has no --scheduler-reserve-full-isl; it is there since 0.19.0"):
        flags.Command(table, "0.14.0").add("--scheduler-reserve-full-isl", True)
    with pytest.raises(flags.UnknownFlag, match="nearest: --max-num-seqs"):
        flags.Command(table, "0.24.0").add("--max-num-seq", 8)
    with pytest.raises(flags.UnknownFlag, match="expected one of fp8"):
        flags.Command(table, "0.19.0").add("--quantization", "fp8_per_block")


def test_a_version_between_two_that_were_read_has_the_options_of_the_older():
    assert flags.table("vllm").nearest("0.20.2")[0] == "0.19.0"
    assert "0.20.2 is not among" in flags.table("vllm").nearest("0.20.2")[1]
    assert flags.table("vllm").nearest("0.24.0") == ("0.24.0", "")
    assert flags.table("trtllm").nearest("1.3.0rc20")[0] == "1.3.0rc11"


# --- what the plan says


def test_vllm_gets_every_number_of_the_plan(tmp_path):
    sets = ["placement={replicas: 2, tp: 4}", "engine={max_num_seqs: 48, max_num_batched_tokens: 4096, gpu_memory_utilization: 0.85, block_size: 32,"
            " max_model_len: 16384, enable_prefix_caching: true}", "model.kv_cache=fp8"]  # fmt: skip
    text, _ = of_engine(tmp_path, "vllm", sets=sets)
    servers = commands(text, "vllm serve")
    assert len(servers) == 2
    for words in servers:
        for option, value in (("--tensor-parallel-size", "4"), ("--max-num-seqs", "48"), ("--max-num-batched-tokens", "4096"),
                              ("--gpu-memory-utilization", "0.85"), ("--block-size", "32"), ("--max-model-len", "16384"),
                              ("--kv-cache-dtype", "fp8")):  # fmt: skip
            assert value_of(words, option) == value
        assert {"--enable-prefix-caching", "--enable-chunked-prefill", "--async-scheduling"} <= set(words)
        assert "--pipeline-parallel-size" not in words and "--quantization" not in words


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("sets", [["placement={replicas: 4, tp: 2}"], ["placement={replicas: 2, tp: 2, pp: 2}"], APART])
def test_no_gpu_is_given_twice_and_none_of_the_plan_is_left_out(tmp_path, engine, sets):
    found = plan_of(tmp_path, sets=sets)
    every = processes(deployment_of(found, ENGINES[engine], None))
    used = [gpu for process in every for gpu in process.gpus]
    assert sorted(used) == list(range(sum(role.replicas * role.gpus for role in found.roles)))
    ports = [process.port for process in every]
    assert len(set(ports)) == len(ports)


def test_replicas_that_do_not_fit_on_what_is_left_of_a_node_start_on_the_next(tmp_path):
    # 3 x tp 4 x pp 1 on nodes of 8: two on the first node, one on the second.
    found = plan_of(tmp_path, sets=["machine=h200-cluster", "placement={replicas: 3, tp: 4}"])
    servers = processes(deployment_of(found, ENGINES["vllm"], None))[:-1]
    assert [(process.node, process.gpus) for process in servers] == [(0, (0, 1, 2, 3)), (0, (4, 5, 6, 7)), (1, (0, 1, 2, 3))]


def test_a_replica_of_two_nodes_is_started_on_both(tmp_path):
    text, _ = of_engine(tmp_path, "vllm", text=EXPERTS, sets=["machine=h200-cluster", "placement={dp: 16, ep: 16}"])
    head, other = commands(text, "vllm serve")
    assert value_of(head, "--data-parallel-size") == value_of(other, "--data-parallel-size") == "16"
    assert value_of(head, "--data-parallel-size-local") == "8" and value_of(other, "--data-parallel-start-rank") == "8"
    assert "--headless" in other and "--headless" not in head
    text, _ = of_engine(tmp_path, "sglang", sets=["machine=h200-cluster", "model.config=llama-3.1-70b", "placement={tp: 8, pp: 2}"])
    assert [value_of(words, "--node-rank") for words in commands(text, "python3 -m sglang.launch_server")] == ["0", "1"]


def test_memory_fractions_leave_the_kv_cache_that_was_simulated(tmp_path):
    found = plan_of(tmp_path)
    memory = found.roles[0].memory
    text, _ = written.written(found, "sglang")
    static = float(value_of(commands(text, "python3 -m sglang.launch_server")[0], "--mem-fraction-static"))
    # Of the whole memory, rounded down by less than a thousandth.
    assert 0 <= memory["weights_bytes"] + memory["kv_cache_bytes"] - static * memory["hbm_bytes"] < 1e-3 * memory["hbm_bytes"]
    text, _ = written.written(found, "trtllm")
    share = float(re.search(r"free_gpu_memory_fraction: ([0-9.]+)", text)[1])
    free = memory["hbm_bytes"] - sum(memory[f"{part}_bytes"] for part in ("weights", "activations", "graphs", "communication"))
    assert share * free == pytest.approx(memory["kv_cache_bytes"], rel=2e-3)


def test_sglang_shares_limits_out_over_data_parallel_ranks(tmp_path):
    sets = ["placement={dp: 4, tp: 2, ep: 8}", "engine={profile: sglang, max_num_seqs: 32, max_num_batched_tokens: 4096}"]
    text, notes = of_engine(tmp_path, "sglang", text=EXPERTS, sets=sets)
    words = commands(text, "python3 -m sglang.launch_server")[0]
    assert value_of(words, "--tp-size") == "8" and value_of(words, "--dp-size") == "4" and value_of(words, "--ep-size") == "8"
    assert "--enable-dp-attention" in words and value_of(words, "--moe-a2a-backend") == "deepep"
    assert value_of(words, "--max-running-requests") == "128" and value_of(words, "--chunked-prefill-size") == "16384"
    assert "times 4" in notes


def test_a_prefill_limit_is_sglangs_and_a_note_of_the_others(tmp_path):
    sets = ["engine.max_prefill_tokens=2500"]
    text, _ = of_engine(tmp_path, "sglang", sets=sets)
    assert value_of(commands(text, "python3 -m sglang.launch_server")[0], "--max-prefill-tokens") == "2500"
    for engine in ("vllm", "trtllm"):
        _, notes = of_engine(tmp_path, engine, sets=sets)
        assert "no option for max_prefill_tokens: 2500" in notes
    text, _ = of_engine(tmp_path, "sglang")
    assert "--max-prefill-tokens" not in text


@pytest.mark.parametrize("profile, expected", [("sglang", set()), ("sglang_mixed", {"--enable-mixed-chunk", "--disable-overlap-schedule"})])
def test_the_profile_decides_how_sglang_schedules(tmp_path, profile, expected):
    text, notes = of_engine(tmp_path, "sglang", sets=[f"engine.profile={profile}", "provider=sglang-0.5.14"])
    words = commands(text, "python3 -m sglang.launch_server")[0]
    assert {"--enable-mixed-chunk", "--disable-overlap-schedule"} & set(words) == expected
    assert "profile" not in notes


@pytest.mark.parametrize("profile, expected", [("vllm_sync", "--no-async-scheduling"), ("vllm_eager", "--enforce-eager")])
def test_the_profile_decides_how_vllm_runs(tmp_path, profile, expected):
    assert expected in of_engine(tmp_path, "vllm", sets=[f"engine.profile={profile}"])[0]


def test_prefill_and_decode_get_roles_of_their_own(tmp_path):
    text, _ = of_engine(tmp_path, "sglang", sets=APART)
    servers = commands(text, "python3 -m sglang.launch_server")
    assert [value_of(words, "--disaggregation-mode") for words in servers] == ["prefill", "prefill", "decode"]
    assert [value_of(words, "--max-running-requests") for words in servers] == ["1024", "1024", "64"]
    bootstraps = [value_of(words, "--disaggregation-bootstrap-port") for words in servers[:2]]
    router = commands(text, "python3 -m sglang_router.launch_router")[0]
    assert [router[i + 2] for i, word in enumerate(router) if word == "--prefill"] == bootstraps == ["8998", "8999"]
    text, _ = of_engine(tmp_path, "vllm", sets=APART)
    assert all(json.loads(value_of(words, "--kv-transfer-config"))["kv_connector"] == "NixlConnector" for words in commands(text, "vllm serve"))
    handshakes = re.findall(r"VLLM_NIXL_SIDE_CHANNEL_PORT=(\d+)", text)
    assert len(set(handshakes)) == 3
    text, _ = of_engine(tmp_path, "trtllm", sets=APART)
    assert text.count("max_tokens_in_buffer: 512") == 2  # the longest prompt, in whole 256s; one file for each side
    assert '- "127.0.0.1:8003"' in text and "num_instances: 2" in text


# --- what the engine cannot do


@pytest.mark.parametrize("engine, text, sets, words", [
    ("sglang", DENSE, [], "simulated with the engine profile vllm, not with SGLang's"),
    ("vllm", EXPERTS, ["placement={tp: 4, dp: 2, ep: 2}"], "over all 8 ranks (tp x dp) or over none; the plan's ep 2"),
    ("vllm", DENSE, ["placement={tp: 2, sp: true}"], "a pass of its compiler"),
    ("sglang", DENSE, ["placement={tp: 2, sp: true}"], "the plan's sp is left out"),
    ("trtllm", EXPERTS, ["placement={dp: 2, tp: 2, ep: 4}"], "cannot be said, and what stands here is dp 4 x tp 1"),
    ("trtllm", DENSE, ["model={config: llama-3.1-8b, weights: fp8, activations: fp8}"], "does not make fp8 out of BF16 weights"),
    ("vllm", DENSE, ["model={config: llama-3.1-8b, weights: int4}"], "name a checkpoint of meta-llama/Meta-Llama-3.1-8B in int4"),
    ("vllm", DENSE, ["placement={replicas: 2}", "router=least_loaded"], "stands as power_of_two"),
    ("vllm", DENSE, ["placement={pp: 2, num_micro_batches: 4}"], "into 4 micro-batches"),
    ("vllm", DENSE, ["placement={tp: 2, two_batch_overlap: true}"], "in two halves that overlap"),
    ("vllm", DENSE, ["placement={dp: 2}"], "2 whole copies behind vLLM's own balancer"),
    ("vllm", DENSE, ["engine.max_model_len=200000"], "unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set"),
    ("vllm", DENSE, ["engine.profile=sglang"], "runs prompts in steps of their own"),
])
def test_what_an_engine_cannot_do_is_said_at_the_top_and_on_stderr(tmp_path, capsys, engine, text, sets, words):
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    arguments = [word for one in sets for word in ("--set", one)]
    assert cli.main(["emit", str(file), "--engine", engine, *arguments]) == 0
    printed = capsys.readouterr()
    top = printed.out.partition("set -euo")[0]
    assert words in " ".join(top.replace("#  ", "").replace("# ", "").split())
    assert words in printed.err


def test_a_checkpoint_that_is_stored_as_the_plan_wants_it_needs_no_option(tmp_path):
    text = EXPERTS.replace("qwen3-30b-a3b}", "deepseek-v3, weights: fp8_block, activations: fp8_block}")
    script, notes = of_engine(tmp_path, "vllm", text=text, sets=["placement={tp: 8, ep: 8}"])
    assert "--quantization" not in commands(script, "vllm serve")[0] and "checkpoint" not in notes


def test_an_older_version_gets_only_what_it_has(tmp_path):
    text, _ = written.written(plan_of(tmp_path), "vllm", version="0.11.0")
    assert "--scheduler-reserve-full-isl" not in text
    assert "--dataset-name timed_trace" not in text


# --- formats


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("sets", [["placement={replicas: 2, tp: 2}"], APART])
def test_scripts_are_shell_and_manifests_are_yaml(tmp_path, engine, sets):
    found = plan_of(tmp_path, sets=sets)
    checked = subprocess.run(["bash", "-n"], input=written.written(found, engine)[0], text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    manifests = documents(written.written(found, engine, form="kubernetes")[0])
    kinds = [document["kind"] for document in manifests]
    assert kinds.count("Deployment") == kinds.count("Service") == len(found.roles) + 1  # and the router
    for document in manifests:
        if document["kind"] == "Deployment" and not document["metadata"]["name"].endswith("router"):
            role = next(role for role in found.roles if role.name == document["metadata"]["labels"]["role"])
            container = document["spec"]["template"]["spec"]["containers"][0]
            assert int(document["spec"]["replicas"]) == role.replicas
            assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == role.gpus
            assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
    graph = documents(written.written(found, engine, form="dynamo")[0])[0]
    services = graph["spec"]["services"]
    assert set(services) == {"Frontend", *(role.name for role in found.roles)}
    for role in found.roles:
        assert services[role.name]["resources"]["limits"]["gpu"] == str(role.gpus)
        words = services[role.name]["extraPodSpec"]["mainContainer"]["args"]
        assert ("--disaggregation-mode" in words) == (role.name != "server")


def test_yaml_text_is_read_back_as_it_was():
    content = {"plain": "a-b.c/d", "number": 1.5, "yes": "true", "text": "a: b # c", "list": [{"x": "1", "y": [2]}, "z"], "none": []}
    read = resolved_scenario.parse(yaml_text.block(content), pathlib.Path("x"))
    assert read == {"plain": "a-b.c/d", "number": "1.5", "yes": "true", "text": "a: b # c", "list": [{"x": "1", "y": ["2"]}, "z"], "none": []}
    assert '"yes": "true"' in yaml_text.block(content)  # a string that YAML would take for a truth value is quoted


def test_the_script_starts_what_it_shows(tmp_path):
    """With stand-ins for the programs that write down what they were started with."""
    text, _ = of_engine(tmp_path, "vllm", sets=APART)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("vllm", "vllm-router", "curl"):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $CUDA_VISIBLE_DEVICES|$*" >> "{tmp_path}/started"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "serve.sh").write_text(text)
    (tmp_path / "requests.jsonl").write_text("")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for words in ([], ["bench"]):
        ended = subprocess.run(["bash", "serve.sh", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
        assert ended.returncode == 0, ended.stderr
    started = (tmp_path / "started").read_text().splitlines()
    servers = [line.split("|")[0] for line in started if "|serve" in line]
    assert sorted(servers) == ["vllm 0,1", "vllm 2,3", "vllm 4,5"]
    assert any('{"kv_connector": "NixlConnector", "kv_role": "kv_both"}' in line for line in started)  # one word, its quotes intact
    assert sum(line.startswith("vllm-router") for line in started) == 1
    assert sum("bench serve" in line for line in started) == 1


# --- the benchmark


def bench_words(tmp_path, engine="vllm", **changes):
    found = plan_of(tmp_path, **changes)
    return benchmark.benchmark_of(deployment_of(found, ENGINES[engine], None)).commands[0].words


def workload(content):
    return [f"workload={content}"]


def test_a_poisson_workload_of_equal_lengths_is_drawn_by_the_engines_own_client(tmp_path):
    words = bench_words(tmp_path)
    for option, value in (("--request-rate", "4"), ("--num-prompts", "12"), ("--random-input-len", "512"), ("--random-output-len", "16"),
                          ("--seed", "1")):  # fmt: skip
        assert value_of(words, option) == value
    assert "--random-range-ratio" not in words and "--max-concurrency" not in words
    words = bench_words(tmp_path, "sglang")
    assert value_of(words, "--random-range-ratio") == "1" and value_of(words, "--request-rate") == "4"


def test_gamma_arrivals_become_burstiness(tmp_path):
    sets = workload("{gamma: {requests_per_s: 4, cv: 2, num_requests: 12, prompt_tokens: 512, output_tokens: 16}}")
    # Times between arrivals with cv 2 are gamma of shape 1/cv^2 = 0.25, which vLLM calls burstiness.
    assert value_of(bench_words(tmp_path, sets=sets), "--burstiness") == "0.25"
    assert value_of(bench_words(tmp_path, "trtllm", sets=sets), "--arrival-smoothness") == "0.25"


def test_a_closed_loop_becomes_concurrency_and_uniform_lengths_a_ratio(tmp_path):
    words = bench_words(tmp_path, text=EXPERTS)
    assert value_of(words, "--max-concurrency") == "4" and value_of(words, "--request-rate") == "inf"
    # 96 to 160 is 128 (1 +- 0.25); outputs are 8 alone.
    assert value_of(words, "--random-input-len") == "128"
    assert json.loads(value_of(words, "--random-range-ratio")) == {"input": 0.25, "output": 0.0}


def test_lengths_that_no_client_draws_are_replayed_from_the_run(tmp_path):
    sets = workload("{poisson: {requests_per_s: 4, num_requests: 12, prompt_tokens: {mean: 900, cv: 1, min: 16, max: 4096}, output_tokens: 16}}")
    found = plan_of(tmp_path, sets=sets)
    words = benchmark.benchmark_of(deployment_of(found, ENGINES["vllm"], None)).commands[0].words
    assert value_of(words, "--dataset-name") == "timed_trace" and "--self-timed" in words
    assert bench_words(tmp_path, "sglang", sets=sets)[:2] == ["aiperf", "profile"]
    lines = [json.loads(line) for line in benchmark.request_lines(found)]
    requests = found.run.requests
    assert [line["input_length"] for line in lines] == list(requests["prompt_tokens"])
    assert [line["output_length"] for line in lines] == list(requests["output_tokens"])
    gaps = requests["arrival_s"] - requests["arrival_s"][0]
    assert [line["timestamp"] for line in lines] == pytest.approx(list(1000 * gaps), abs=1e-3)
    ids = [name for line in lines for name in line["hash_ids"]]
    assert len(set(ids)) == len(ids)  # no prompt begins as another does
    assert all(len(line["hash_ids"]) == -(-line["input_length"] // benchmark.CHUNK) for line in lines)


def test_requests_given_one_by_one_are_replayed(tmp_path):
    sets = workload("{requests: {arrival_s: [0, 0.5, 1], prompt_tokens: [100, 200, 300], output_tokens: [10, 11, 12]}}")
    found = plan_of(tmp_path, sets=sets)
    words = benchmark.benchmark_of(deployment_of(found, ENGINES["vllm"], None)).commands[0].words
    assert value_of(words, "--dataset-name") == "timed_trace" and "--self-timed" in words
    lines = [json.loads(line) for line in benchmark.request_lines(found)]
    assert [(line["timestamp"], line["input_length"], line["output_length"]) for line in lines] == [(0, 100, 10), (500, 200, 11), (1000, 300, 12)]


def test_repeated_prompts_keep_their_chunks(tmp_path):
    sets = workload("{closed_loop: {concurrency: 2, num_requests: 6, prompt_tokens: 600, output_tokens: 4, distinct_prompts: 3}}")
    lines = [json.loads(line) for line in benchmark.request_lines(plan_of(tmp_path, sets=sets))]
    chunks = sorted(tuple(line["hash_ids"]) for line in lines)
    assert len(set(chunks)) == 3 and all(chunks.count(one) == 2 for one in chunks)


def test_the_command_writes_its_files_and_keeps_what_is_there(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(DENSE)
    arguments = ["emit", str(file), "--engine", "vllm", "-o", str(tmp_path / "serve.sh"), "--requests", str(tmp_path / "requests.jsonl")]
    assert cli.main(arguments) == 0
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 12
    assert cli.main(arguments) == 2
    assert "serve.sh' exists" in capsys.readouterr().err
    assert cli.main([*arguments, "--force"]) == 0


def test_a_run_directory_and_its_scenario_give_the_same_commands(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(DENSE)
    assert cli.main(["run", str(file), "-o", str(tmp_path / "run"), "--no-report"]) == 0
    capsys.readouterr()
    printed = []
    for name in (file, tmp_path / "run"):
        assert cli.main(["emit", str(name), "--engine", "trtllm"]) == 0
        printed.append(capsys.readouterr().out.replace(str(name), "RUN"))
    assert printed[0] == printed[1]


# --- llm-d and GuideLLM


def router_values(text):
    return "".join(line.removeprefix(llmd.MARK) + "\n" for line in text.splitlines() if line.startswith(llmd.MARK))


@pytest.mark.parametrize("sets", [["placement={replicas: 2, tp: 2}"], APART])
def test_llm_d_finds_its_pods_by_label_and_sends_prompts_through_the_sidecar(tmp_path, sets):
    found = plan_of(tmp_path, sets=sets)
    text, _ = written.written(found, "vllm", form="llm-d")
    values = router_values(text)
    assert "matchLabels:\n      llm-d.ai/guide: plan\n" in values
    wanted = {"llm-d.ai/guide": "plan"}.items()
    deployed = [document for document in documents(text) if document["kind"] == "Deployment"]
    assert len(deployed) == len(found.roles)  # llm-d's own router
    for document in deployed:
        template = document["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert wanted <= labels.items() and document["spec"]["selector"]["matchLabels"].items() <= labels.items()
        container = template["spec"]["containers"][0]
        port = value_of(container["command"], "--port")
        assert port == container["ports"][0]["containerPort"]
        if found.is_apart:
            assert labels["llm-d.ai/role"] == labels["role"]
            assert ("initContainers" in template["spec"]) == (labels["role"] == "decode")
        assert (port == "8200") == ("initContainers" in template["spec"])
    config = llmd.picker_config(deployment_of(found, ENGINES["vllm"], None))
    assert textwrap.indent(yaml_text.block(config), " " * 8) in values
    named = {plugin["type"] for plugin in config["plugins"]}
    assert {profile["name"] for profile in config["schedulingProfiles"]} == ({"prefill", "decode"} if found.is_apart else {"default"})
    for profile in config["schedulingProfiles"]:
        assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= named


def test_guidellm_offers_what_the_run_was_offered(tmp_path):
    joined = "\n".join(line.lstrip("# ") for line in of_engine(tmp_path, "vllm")[0].splitlines())
    words = commands(joined, "guidellm run")[0]
    settings = {name: dict(part.split("=", 1) for part in value_of(words, name).split(",")) for name in words if name.startswith("--")}
    assert settings["--profile"] == {"kind": "poisson", "rate": "4"}
    assert settings["--data"] == {"kind": "synthetic_text", "prompt_tokens": "512", "output_tokens": "16"}
    assert settings["--constraint"]["count"] == "12"
    closed, notes = of_engine(tmp_path, "vllm", text=EXPERTS)  # uniform lengths, which it does not draw
    assert "guidellm run" not in closed and "GuideLLM draws" in closed


def test_settings_of_an_option_are_those_of_its_kind():
    command = flags.Command(flags.table("guidellm"), "0.8.1", "guidellm", "run")
    with pytest.raises(flags.UnknownFlag, match="expected one of poisson"):
        command.add("--profile", {"kind": "gamma", "rate": 1})
    with pytest.raises(flags.UnknownFlag, match="found streams in --profile kind=poisson; expected rate"):
        command.add("--profile", {"kind": "poisson", "streams": 1})
