"""Tiers behind the KV blocks of GPUs, from a scenario to its report."""

import collections
import json
import pathlib

import orrery
import pytest
from orrery import _core, cli, report
from orrery.validation import directory, service_steps, serving

HOST = {"name": "host", "capacity": "64 GiB", "bandwidth": "50 GB/s", "latency": "10 us"}
# Blocks of 512 tokens; the KV cache of a GPU that is almost full of weights holds four prompts of 16 blocks.
PROMPTS, BLOCKS = 12, 16


def trace(path):
    """Two rounds of the same prompts, so far apart that nothing waits."""
    rows = [{"timestamp": 4000 * i, "input_length": 512 * BLOCKS, "output_length": 4, "hash_ids": [100 * (i % PROMPTS) + b for b in range(BLOCKS)]}
            for i in range(2 * PROMPTS)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def scenario(path, **kv_cache):
    return orrery.Scenario(
        model="llama-3.1-8b",
        machine="single-h200",
        provider="vllm-0.24.0",
        engine={"enable_prefix_caching": True, "gpu_memory_utilization": 0.17, "max_num_seqs": 16},
        workload={"mooncake": trace(path / "trace.jsonl")},
        **({"kv_cache": kv_cache} if kv_cache else {}),
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiers")
    return {
        "none": orrery.simulate(scenario(path)),
        "host": orrery.simulate(scenario(path, tiers=[HOST])),
        "slow": orrery.simulate(scenario(path, tiers=[{**HOST, "bandwidth": "0.1 GB/s", "write_bandwidth": "50 GB/s"}], load="when_faster")),
    }


def test_the_second_round_is_found_in_host_memory(found):
    cached = found["host"].requests.columns()["cached_tokens"]
    # The last token of a prompt is always computed, so the last of its 16 blocks is.
    assert cached.tolist() == [0] * PROMPTS + [512 * (BLOCKS - 1)] * PROMPTS
    assert (found["host"].requests.columns()["loaded_tokens"] == cached).all()
    assert not found["none"].requests.columns()["cached_tokens"].any()
    tier = found["host"].summary["kv_tiers"]["tiers"][0]
    assert tier["hit_tokens"] == cached.sum()
    assert tier["hit_rate"] == pytest.approx((BLOCKS - 1) / BLOCKS / 2)
    # 2 (keys, values) x 32 layers x 8 heads x 128 x 2 B a token
    assert tier["loaded_bytes"] == cached.sum() * 131072
    assert "kv_tiers" not in found["none"].summary


def test_a_hit_in_host_memory_costs_what_its_layers_wait_for(found):
    ttft = {name: result.requests.columns()["ttft_s"] for name, result in found.items()}
    # 15 blocks of 64 MiB at 50 GB/s are 20.1 ms, of which the first of 32 layers, 0.63 ms, is waited for at least.
    gain = ttft["none"][PROMPTS:] - ttft["host"][PROMPTS:]
    assert (gain > 0.1).all()
    assert (ttft["host"][PROMPTS:] > 0.0006).all()
    assert found["host"].summary["kv_tiers"]["exposed_s"] >= PROMPTS * 0.0006


def test_what_is_computed_faster_than_it_is_loaded_is_computed(found):
    behind = found["slow"].summary["kv_tiers"]
    assert behind["recomputed_tokens"] > 0
    assert behind["tiers"][0]["loaded_bytes"] == 0
    own, plain = (found[name].requests.columns()["ttft_s"][PROMPTS:].mean() for name in ("slow", "none"))
    assert own == pytest.approx(plain, rel=0.05)  # but for the first layer of blocks that leave for the tier


def test_a_resolved_scenario_says_the_tiers_and_repeats_the_run(found, tmp_path):
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(found["host"].scenario.to_yaml(), encoding="utf-8")
    again = orrery.load(resolved)
    assert again.to_yaml() == found["host"].scenario.to_yaml()
    assert "write: eviction, shared: false}" in again.to_yaml()
    assert (orrery.simulate(again).requests.columns()["ttft_s"] == found["host"].requests.columns()["ttft_s"]).all()


def test_without_tiers_a_resolved_scenario_has_no_such_key(tmp_path):
    plain = scenario(tmp_path)
    assert "\nkv_cache:" not in plain.to_yaml()
    assert plain.replace(kv_cache={"tiers": []}).to_yaml() == plain.to_yaml()


def test_a_workload_without_prefixes_is_warned_of(tmp_path):
    loop = {"closed_loop": {"concurrency": 2, "num_requests": 4, "prompt_tokens": 64, "output_tokens": 4}}
    result = orrery.simulate(scenario(tmp_path, tiers=[HOST]).replace(workload=loop))
    assert any("name no prefixes" in warning for warning in result.summary["warnings"])


def test_a_run_says_where_prefixes_were_found(tmp_path, capsys):
    file = tmp_path / "tiers.yaml"
    file.write_text(scenario(tmp_path, tiers=[HOST]).to_yaml(), encoding="utf-8")
    assert cli.main(["run", str(file), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "0.0 % GPU, 46.9 % host" in said
    assert "host 11.2 GiB loaded" in said
    assert "Prompt tokens from host" in (tmp_path / "out" / "report.html").read_text()
    assert cli.main(["emit", str(tmp_path / "out"), "--engine", "vllm"]) == 2
    assert "found tiers of KV blocks" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    summary["kv_tiers"]["tiers"][0]["loaded_bytes"] = "much"
    (tmp_path / "out" / "SHA256SUMS").unlink()
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=r"kv_tiers\.tiers\[0\]\.loaded_bytes"):
        report.render(tmp_path / "out")


@pytest.fixture
def served(tmp_path):
    """A validation whose GPUs did what was predicted, but for twice the wait."""
    folder = tmp_path / "validation"
    folder.mkdir()
    _core.predict_validation(scenario(tmp_path, tiers=[HOST])).write(str(folder))
    executed = folder / "executed"
    executed.mkdir()
    for name in ("requests.csv", "serve_steps.csv"):
        (executed / name).write_bytes((folder / "predicted" / name).read_bytes())
    header, row = (folder / "predicted" / "kv_tiers.csv").read_text(encoding="utf-8").splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    cells["exposed_s"] = str(2 * float(cells["exposed_s"]))
    (executed / "kv_tiers.csv").write_text(f"{header}\n{','.join(cells.values())}\n", encoding="utf-8")
    (executed / "status.txt").write_text("complete\n", encoding="utf-8")
    return folder


def test_a_validation_says_what_the_gpu_side_needs_of_the_tier(served):
    hashes = (served / "block_hashes.txt").read_text(encoding="utf-8").splitlines()
    assert len(hashes) == 2 * PROMPTS
    assert hashes[1] == hashes[1 + PROMPTS] == " ".join(str(100 + block) for block in range(BLOCKS))
    assert "tier host 68719476736 5e+10 5e+10" in (served / "kv_tiers.txt").read_text(encoding="utf-8")
    assert "hash_block_tokens 512" in (served / "serve.txt").read_text(encoding="utf-8")


def test_what_moved_stands_beside_what_was_predicted(served, capsys):
    rows = serving.serving(directory.read(served))["kv_tiers"]
    found = {(row["tier"], row["metric"]): (row["predicted"], row["measured"]) for row in rows}
    predicted, measured = found["host", "hit_tokens"]
    assert predicted == measured > 0
    predicted, measured = found["", "exposed_s"]
    assert measured == pytest.approx(2 * predicted)
    assert cli.main(["validate", "--compare", str(served)]) == 1  # its steps were not executed
    assert "host: prompt tokens found" in capsys.readouterr().out
    assert "steps waited for blocks" in (served / "validation.html").read_text(encoding="utf-8")


def test_tiers_of_another_run_are_named(served):
    file = served / "executed" / "kv_tiers.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("host", "disk"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"kv_tiers\.csv: found tiers disk; predicted were host"):
        serving.serving(directory.read(served))


def test_executed_steps_are_compared_without_their_waits(served):
    def measured():
        case = directory.read(served)
        return [step.duration_s * step.num_steps for step in service_steps.executed_steps(case.measured_service)]

    whole = measured()
    steps = len((served / "executed" / "serve_steps.csv").read_text(encoding="utf-8").splitlines()) - 1
    waits = ["0.25", *["0"] * (steps - 1)]
    host = served / "executed" / "serve_host.csv"
    host.write_text("replica,waited_s\n" + "".join(f"0,{wait}\n" for wait in waits), encoding="utf-8")
    with pytest.raises(ValueError, match=r"serve_host\.csv: step 0 waited 0\.25 s of the"):
        measured()
    wait = whole[0] / 2
    host.write_text(host.read_text(encoding="utf-8").replace("0.25", repr(wait)), encoding="utf-8")
    assert measured() == pytest.approx([whole[0] - wait, *whole[1:]])
    host.write_text("replica,waited_s\n0,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"found 1 steps; serve_steps\.csv has {steps}"):
        measured()


def test_the_slice_of_the_trace_is_lines_of_it():
    traces = pathlib.Path(__file__).resolve().parents[2] / "data" / "traces"
    lines = (traces / "mooncake_fast25_synthetic.jsonl").read_text(encoding="utf-8").splitlines()
    late = [(line, row) for line in lines if (row := json.loads(line))["timestamp"] >= 800_000]
    firsts = collections.Counter(row["hash_ids"][0] for _, row in late)
    kept = [
        line
        for line, row in late
        if row["input_length"] <= 32_768 and firsts[row["hash_ids"][0]] >= 4 and row["hash_ids"][0] % 2 == 0
    ]
    assert (traces / "mooncake_fast25_slice.jsonl").read_text(encoding="utf-8").splitlines() == kept
