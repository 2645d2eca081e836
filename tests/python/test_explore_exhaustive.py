"""The search against simulating every plan, over random questions: the same cost, and far fewer full simulations."""

import random

import pytest
from share import share

from orrery.search import driver, question

MODELS = (
    ("llama-3.1-8b", "bf16", 4),
    ("llama-3.1-70b", "fp8", 16),
    ("qwen3-30b-a3b", "bf16", 8),
    ("mixtral-8x7b-v0.1", "fp8", 8),
)


def random_question(seed):
    """A model, a load and an SLO for which some of the plans are enough, and often none."""
    draw = random.Random(seed)
    model, weights, gpus = draw.choice(MODELS)
    prompt, output = draw.choice((250, 1000, 3000)), draw.choice((50, 200))
    rate = draw.uniform(0.5, 4) * gpus
    lengths = f"prompt_tokens: {{mean: {prompt}, cv: {draw.choice((0.3, 1))}, max: 8192}}, output_tokens: {output}"
    engines = "engine: {max_num_seqs: [32, 256], max_num_batched_tokens: [2048, 8192]}, "
    return question.Question(
        f"question: seed {seed}\n"
        f"model: {{config: {model}, weights: {weights}, activations: {weights}}}\n"
        f"machine: {{name: h200-cluster, num_gpus: {max(8, gpus)}}}\n"
        "provider: vllm-0.24.0\n"
        f"workload: {{poisson: {{requests_per_s: {rate:.3f}, num_requests: 300, {lengths}}}}}\n"
        f"slo: {{ttft: {{p99: {draw.choice((300, 1000, 3000))} ms}}, tpot: {{p{draw.choice((50, 99))}: {draw.choice((8, 15, 40))} ms}}}}\n"
        f"search: {{gpus: 1..{gpus}, {engines}placement: {{tp: [1, 2, 4, 8], pp: [1, 2], replicas: auto}}}}\n",
        f"/{seed}.yaml",
    )


@pytest.mark.parametrize("seed", share(range(20), one_in=5))
def test_the_cheapest_plan_is_found(seed, record_property):
    found = driver.explore(random_question(seed), threads=2)
    every = found.runner.run([(i, driver.FULL, 1.0) for i in range(len(found.space))], phase="every plan")
    costs = [float(cost) for cost, outcome in zip(found.columns["usd_per_hour"], every) if outcome["meets"]]
    assert bool(costs) == bool(found.ranking)
    if costs:
        assert float(found.columns["usd_per_hour"][found.ranking[0]]) == min(costs)
    assert 5 * found.num_simulated["full"] <= len(found.space)
    for other, simulated in found.equals.items():  # were not simulated, since they would have done the same
        if found.outcomes[simulated]["fidelity"] == "full":
            assert all(every[other][figure] == every[simulated][figure] for figure in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "meets"))
    assert not any(outcome["meets"] and found.estimates[i]["impossible"] for i, outcome in enumerate(every))
    record_property("explored", f"{found.num_simulated['full']} of {len(found.space)}")
