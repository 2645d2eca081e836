"""Laws of whole services, on random ones (tests/fuzz/services.py): what must not change a figure, and in which direction others move.

Those of the scheduler by itself are in tests/serve/service_laws_test.cpp.
"""

import json
import itertools
import random

import invariants
import numpy as np
import orrery
import pytest
import services
from share import share

QUANTITIES = ("ttft_s", "e2e_s")
# 1 ns of times up to some hundred seconds: sums of some thousand steps, begun at another instant.
ROUNDING_S = 1e-9
TRACE = services.csv_trace(random.Random(7), num_requests=90, largest=3000)
HEADER, *ROWS = TRACE.splitlines()
BASE = {"model": {"config": "llama-3.1-8b"}, "machine": "hgx-h200", "provider": "vllm-0.24.0", "workload": {"trace": "trace.csv"}}


class Services:
    """A directory whose scenarios lie beside trace.csv and trace.jsonl."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "trace.csv").write_text(TRACE, encoding="utf-8")

    def trace(self, rows):
        name = f"trace{len(list(self.directory.iterdir()))}.csv"
        (self.directory / name).write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8")
        return {"workload": {"trace": name}}

    def load(self, *changes):
        """The base scenario with the keys of `changes` replaced."""
        tree = {key: value for part in (BASE, *changes) for key, value in part.items()}
        file = self.directory / "case.yaml"
        file.write_text(services.yaml_of(tree), encoding="utf-8")
        return orrery.load(file)

    def run(self, *changes, threads=1):
        return orrery.simulate(self.load(*changes), threads=threads)


@pytest.fixture
def service(tmp_path):
    return Services(tmp_path)


def column(result, name):
    return result.requests.columns()[name]


def times(result):
    return {name: column(result, name) for name in QUANTITIES}


def files(result, directory):
    """Bytes of its run directory."""
    result.write(directory, report=False)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def said(found):
    """What a run found, without who chose the number formats: the resolved scenario states what was a default."""
    summary = json.loads(found.pop("summary.json"))
    del summary["provenance"]["precision"], found["SHA256SUMS"]
    return found | {"summary": summary}


@pytest.mark.parametrize("seed", share(range(300), one_in=10))
def test_a_resolved_scenario_runs_to_the_same_bytes(seed, tmp_path):
    scenario = services.service(random.Random(f"resolved {seed}"))
    (tmp_path / "case.yaml").write_text(services.yaml_of(scenario), encoding="utf-8")
    first = orrery.simulate(orrery.load(tmp_path / "case.yaml"))
    (tmp_path / "resolved").mkdir()
    (tmp_path / "resolved" / "case.yaml").write_text(first.scenario.to_yaml(), encoding="utf-8")
    second = orrery.simulate(orrery.load(tmp_path / "resolved" / "case.yaml"))
    assert said(files(first, tmp_path / "one")) == said(files(second, tmp_path / "two"))
    assert invariants.violations(tmp_path / "one") == []


@pytest.mark.parametrize("router", services.ROUTERS)
def test_threads_and_repetition_leave_every_byte(router, service, tmp_path):
    changes = {"router": router, "placement": {"replicas": 8}, "engine": {"enable_prefix_caching": True},
               "workload": {"poisson": {"requests_per_s": 100, "num_requests": 200, "prompt_tokens": {"mean": 300, "cv": 1, "max": 2000},
                                        "output_tokens": {"min": 1, "max": 40}}}}  # fmt: skip
    found = [files(service.run(changes, threads=threads), tmp_path / f"{i}") for i, threads in enumerate((1, 1, 2, 3, 16))]
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("profile", ["vllm", "vllm_sync", "trtllm", "sglang"])
def test_three_replicas_behind_round_robin_are_three_services(profile, service):
    engine = {"engine": {"profile": profile}}
    together = times(service.run(engine, {"placement": {"replicas": 3}}))
    for replica in range(3):
        alone = times(service.run(engine, service.trace(ROWS[replica::3])))
        for name in QUANTITIES:
            assert together[name][replica::3] == pytest.approx(alone[name], abs=ROUNDING_S)


@pytest.mark.parametrize("kept", [30, 50, 80])
def test_what_has_ended_does_not_depend_on_what_comes_later(kept, service):
    whole, cut = service.run(), service.run(service.trace(ROWS[:kept]))
    begin = column(whole, "arrival_s")[kept]
    ended = np.flatnonzero(column(whole, "finish_s")[:kept] < begin)
    assert len(ended) >= 4
    for name in ("first_scheduled_s", "first_token_s", "finish_s"):
        assert (column(whole, name)[ended] == column(cut, name)[ended]).all()


@pytest.mark.parametrize("shift_s", [1, 1000, 1e6])
def test_a_trace_may_begin_at_any_time(shift_s, service):
    rows = [row.split(",") for row in ROWS]
    moved = service.run(service.trace([f"{float(at) + shift_s:.6f},{prompt},{output}" for at, prompt, output in rows]))
    original = service.run()
    for name in QUANTITIES:  # a double at 1e6 s resolves 1.2e-10 s, and 100 tokens are as many sums
        assert column(moved, name) == pytest.approx(column(original, name), abs=1e-7)


def never_rises(values):
    return all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(values))


@pytest.mark.parametrize("router", ["round_robin", "least_loaded"])
def test_more_replicas_are_never_slower(router, service):
    runs = [service.run({"router": router, "placement": {"replicas": n}}, {"workload": {"trace": "trace.csv", "rate_scale": 4}})
            for n in (1, 2, 4, 8)]  # fmt: skip
    for name in QUANTITIES:
        assert never_rises([run.summary[name]["mean"] for run in runs])


@pytest.mark.parametrize("profile", ["vllm", "trtllm", "sglang"])
def test_a_higher_rate_is_never_faster(profile, service):
    runs = [service.run({"engine": {"profile": profile}}, {"workload": {"trace": "trace.csv", "rate_scale": scale}}) for scale in (16, 4, 1, 0.1)]
    for name in QUANTITIES:
        assert never_rises([run.summary[name]["mean"] for run in runs])


def utilization_of(service, num_blocks, *changes, kind="offline"):
    """gpu_memory_utilization that leaves so many KV blocks in a workload of that kind, which decides on the tokens of a
    step and so on its memory; blocks grow linearly with it."""
    one = {"workload": {kind: {"num_requests": 1, "prompt_tokens": 1, "output_tokens": 1} | ({"concurrency": 1} if kind == "closed_loop" else {})}}
    engine = {key: value for part in changes for key, value in part.get("engine", {}).items()}
    low, high = 0.5, 0.9
    few, many = (service.run(*changes, one, {"engine": engine | {"gpu_memory_utilization": u}}).summary["num_kv_blocks"] for u in (low, high))
    return low + (num_blocks + 0.5 - few) * (high - low) / (many - few)


def test_a_larger_kv_cache_is_never_slower(service):
    work = {"workload": {"offline": {"num_requests": 60, "prompt_tokens": {"min": 1, "max": 1000}, "output_tokens": {"min": 1, "max": 200}}}}
    runs = [service.run(work, {"engine": {"gpu_memory_utilization": utilization_of(service, blocks)}}) for blocks in (80, 200, 500, 2000)]
    assert runs[0].summary["preemptions"] > 0
    assert [run.summary["num_kv_blocks"] for run in runs] == pytest.approx([80, 200, 500, 2000], abs=1)
    assert never_rises([run.summary["duration_s"] for run in runs])
    assert never_rises([run.summary["e2e_s"]["mean"] for run in runs])


def test_looser_limits_are_met_by_no_fewer_requests(service):
    limits = ((0.01, 0.004), (0.03, 0.006), (0.1, 0.008), (0.1, 0.02), (10, 1))
    runs = [service.run({"slo": {"ttft": f"{ttft} s", "tpot": f"{tpot} s"}}) for ttft, tpot in limits]
    met = [run.summary["slo_attainment"] for run in runs]
    assert met == sorted(met) and met[0] < 0.5 and met[-1] == 1
    assert all(column(run, "finish_s").tolist() == column(runs[0], "finish_s").tolist() for run in runs)


@pytest.mark.parametrize("level", ["closed_form", "heap", "representative", "all_ranks"])
def test_the_order_of_prompts_in_a_batch_changes_no_time(level, service):
    scenario = service.load({"placement": {"tp": 2}})
    prompts = [orrery.PrefillChunk(*lengths) for lengths in ((700, 0), (64, 4000), (129, 128), (1, 3))]
    spans = [orrery.step(scenario, orrery.Batch(prefill=list(order), num_decodes=5, decode_context=3000), level=level).makespan_s
             for order in itertools.permutations(prompts)]  # fmt: skip
    assert spans == pytest.approx([spans[0]] * 24, rel=1e-12)


def mooncake(shared):
    """Forty requests of four blocks each, every second one with the first `shared` blocks of all such."""
    hashes = [[block if i % 2 and block < shared else 1000 + 4 * i + block for block in range(4)] for i in range(40)]
    return "".join(f'{{"timestamp": {40 * i}, "input_length": 2000, "output_length": 20, "hash_ids": {ids}}}\n' for i, ids in enumerate(hashes))


@pytest.mark.parametrize("profile", ["vllm", "sglang_mixed"])
def test_a_prefix_cache_finds_only_what_is_shared_and_slows_nothing_down(profile, service):
    found = {}
    for shared, cache in itertools.product((0, 3), (False, True)):
        (service.directory / "trace.jsonl").write_text(mooncake(shared), encoding="utf-8")
        engine = {"engine": {"profile": profile, "enable_prefix_caching": cache}}
        found[shared, cache] = service.run({"workload": {"mooncake": "trace.jsonl"}}, engine)
    for shared, cache in ((0, False), (0, True), (3, False)):
        assert not column(found[shared, cache], "cached_tokens").any()
    for name in QUANTITIES:
        assert (column(found[0, True], name) == column(found[0, False], name)).all()
        assert found[3, True].summary[name]["mean"] < found[3, False].summary[name]["mean"]
    hits = column(found[3, True], "cached_tokens")
    assert (hits <= column(found[3, True], "prompt_tokens")).all()
    # Of each request but the first with shared blocks, 3 blocks of 512 tokens; the others share nothing.
    assert hits.tolist() == [3 * 512 if i % 2 and i > 1 else 0 for i in range(40)]


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("profile", services.PROFILES)
def test_tokens_are_conserved_when_the_kv_cache_is_tiny(profile, dp, cache, service, tmp_path):
    rng = random.Random(f"{profile} {dp} {cache}")
    blocks = dp * rng.randint(65, 500)
    changes = {"placement": {"dp": dp}, "engine": {"profile": profile, "enable_prefix_caching": cache}}
    utilization = utilization_of(service, blocks, changes, kind="closed_loop")
    # A request takes at most 45 of 65 blocks.
    lengths = {"prompt_tokens": {"min": 1, "max": 500}, "output_tokens": {"min": 1, "max": 200}}
    loop = {"workload": {"closed_loop": {"concurrency": 80, "num_requests": 120, "distinct_prompts": 9} | lengths}}
    result = service.run(changes, loop, {"engine": changes["engine"] | {"gpu_memory_utilization": utilization}})
    assert result.summary["num_kv_blocks"] == pytest.approx(blocks, abs=dp)
    result.write(tmp_path / "out", report=False)
    assert invariants.violations(tmp_path / "out") == []
    assert result.summary["kv_utilisation"]["max"] > 0.25
