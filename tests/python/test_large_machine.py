"""Machines of 100,000 GPUs: what is built of one that no request ever meets costs little."""

import resource
import time

import orrery
import pytest


def scenario(directory, num_gpus, replicas, requests):
    file = directory / "scenario.yaml"
    file.write_text(
        "model: {config: llama-3.1-70b, weights: fp8, activations: fp8, kv_cache: fp8}\n"
        f"machine: {{name: h200-cluster, num_gpus: {num_gpus}}}\nprovider: vllm-0.24.0\n"
        f"placement: {{replicas: {replicas}, tp: 8}}\nrouter: round_robin\n"
        f"workload: {{poisson: {{requests_per_s: {replicas}, num_requests: {requests}, prompt_tokens: 512, output_tokens: 64}}}}\n",
        encoding="utf-8",
    )
    return file


def test_a_machine_of_100000_gpus_was_refused(tmp_path):
    started = time.process_time()
    loaded = orrery.load(scenario(tmp_path, 100_000, 12_500, 25_000))
    assert time.process_time() - started < 10
    result = orrery.simulate(loaded)
    assert time.process_time() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # KiB
    assert result.summary["num_gpus"] == 100_000
    assert result.summary["requests"] == 25_000


def test_replicas_far_apart_serve_as_one_does(tmp_path):
    # One request each, so all replicas serve alike wherever their nodes lie.
    many = orrery.simulate(orrery.load(scenario(tmp_path, 100_000, 12_500, 12_500))).summary
    assert many["tpot_s"]["max"] == pytest.approx(many["tpot_s"]["p50"], rel=1e-9)
    one = orrery.simulate(orrery.load(scenario(tmp_path, 8, 1, 1))).summary
    assert many["tpot_s"]["p50"] == pytest.approx(one["tpot_s"]["p50"], rel=1e-9)
