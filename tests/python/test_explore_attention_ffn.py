"""Searches over attention and FFNs on GPUs of their own and over context parallelism: against simulating every plan, and against the
closed form of MegaScale-Infer (arXiv 2504.02263, section 4.1)."""

import json
import math
import random

import pytest
from share import share

from orrery.search import attention_ffn, driver, question, text
from orrery.search.answer import answer
from orrery.search.plan_words import words


def ask(model, workload, slo, search, machine="hgx-h200", provider="vllm-0.24.0", engine="{max_num_batched_tokens: 4096}"):
    return question.Question(
        f"question: q\nmodel: {{config: {model}}}\nmachine: {machine}\nprovider: {provider}\nengine: {engine}\nworkload: {workload}\n"
        f"{f'slo: {slo}' if slo else ''}\nsearch: {search}\n",
        "/q.yaml",
    )


SPACES = (
    ("llama-3.1-8b", 8, "{dp: [1, 2], tp: [1, 2], ffn_instances: [0, 1, 2], num_micro_batches: 1..4, replicas: auto}"),
    ("llama-3.1-8b", 8, "{tp: [1, 2], cp: auto, cp_weights: auto, cp_prefill: auto, cp_decodes: auto, replicas: auto}"),
    ("mixtral-8x7b-v0.1, weights: fp8, activations: fp8", 8, "{dp: [2, 4], ep: auto, ffn_instances: [0, 2, 4], num_micro_batches: 1..3, replicas: auto}"),
    ("llama-3.1-8b", 8, "{tp: [1, 2], pp: [1, 2, 4], num_micro_batches: [1, 4], replicas: auto}"),
)


def random_question(seed):
    draw = random.Random(seed)
    model, gpus, placement = SPACES[seed % len(SPACES)]
    prompt, output = draw.choice((300, 3000, 8000)), draw.choice((30, 150))
    rate = draw.uniform(1, 6) * 3000 / (prompt + 20 * output)
    lengths = f"prompt_tokens: {{mean: {prompt}, cv: {draw.choice((0.3, 0.8))}, max: 32768}}, output_tokens: {output}"
    slo = f"{{ttft: {{p{draw.choice((50, 99))}: {draw.choice((150, 400, 1500))} ms}}, tpot: {{p{draw.choice((50, 99))}: {draw.choice((12, 25, 60))} ms}}}}"
    return ask(model, f"{{poisson: {{requests_per_s: {rate:.3f}, num_requests: 200, {lengths}}}}}", slo, f"{{gpus: 1..{gpus}, placement: {placement}}}")


@pytest.mark.parametrize("seed", share(range(24), one_in=5))
def test_the_cheapest_plan_is_found(seed):
    found = driver.explore(random_question(seed), threads=2)
    every = found.runner.run([(i, driver.FULL, 1.0) for i in range(len(found.space))], phase="every plan")
    costs = [float(cost) for cost, outcome in zip(found.columns["usd_per_hour"], every) if outcome["meets"]]
    assert bool(costs) == bool(found.ranking)
    if costs:
        assert float(found.columns["usd_per_hour"][found.ranking[0]]) == min(costs)
    assert not any(outcome["meets"] and found.estimates[i]["impossible"] for i, outcome in enumerate(every))
    # The best of each kind likewise.
    if (kinds := attention_ffn.best_of_kinds(found)) is not None:
        of_ffn = found.columns["num_ffn_gpus"] > 0
        for is_apart, best in ((True, (kinds.apart or [None])[0]), (False, kinds.together)):
            met = [float(found.columns["usd_per_hour"][i]) for i, outcome in enumerate(every) if outcome["meets"] and of_ffn[i] == is_apart]
            assert (best is None) == (not met)
            assert best is None or float(found.columns["usd_per_hour"][best]) == min(met)


# Llama-3.1-70B on rooflines, so that what a micro-batch takes is what its bytes and FLOPs say: GPUs, sequences and prompts.
@pytest.mark.parametrize(("gpus", "sequences", "prompt"), [(6, 256, 300), (8, 512, 300), (8, 256, 4000)])
def test_the_best_ratio_is_the_balanced_one_with_micro_batches_that_fill_it(gpus, sequences, prompt):
    workload = f"{{closed_loop: {{concurrency: {sequences}, num_requests: {3 * sequences}, prompt_tokens: {prompt}, output_tokens: 400}}, warmup_requests: {sequences}}}"
    meshes = "{replicas: 1, dp: [1, 2, 4, 5, 6, 7], ffn_instances: [1, 2, 4, 7], num_micro_batches: [1, 2, 3]}"
    found = driver.explore(ask("llama-3.1-70b", workload, "", f"{{gpus: {gpus}..{gpus}, placement: {meshes}}}", provider="none",
                               engine="{max_num_seqs: 512, max_num_batched_tokens: 4096}"), threads=2)  # fmt: skip
    every = found.runner.run([(i, driver.FULL, 1.0) for i in range(len(found.space))], phase="every plan")
    found.outcomes.update(enumerate(every))
    plans = [dict(assignment.split("=") for assignment in found.assignments(i)) for i in range(len(found.space))]
    forms = [attention_ffn.closed_form(found, i) for i in range(len(found.space))]
    attention = [int(plan["placement.dp"]) for plan in plans]
    batches = [int(plan["placement.num_micro_batches"]) for plan in plans]
    best = found.ranking[0]
    assert every[best]["output_tokens_per_s"] == max(outcome["output_tokens_per_s"] for outcome in every)
    # Of the splits of as many GPUs in as many micro-batches it is the one nearest to T_a = T_f.
    alike = [i for i, count in enumerate(batches) if count == batches[best]]
    assert len(alike) > 2
    assert min(alike, key=lambda i: abs(math.log(forms[i]["balance"]))) == best
    # A step takes what the form says of its stages, besides the LM head, and by the form no other plan makes more tokens.
    steps = [closed_form_step(form, count) for form, count in zip(forms, batches)]
    assert [form["step_s"] / step for form, step in zip(forms, steps)] == pytest.approx([1.03] * len(steps), abs=0.05)
    assert max(range(len(steps)), key=lambda i: forms[i]["decodes"] / steps[i]) == best
    # One micro-batch, where two or more are asked for, leaves both sides idle.
    alone = next(i for i, count in enumerate(batches) if count == 1 and attention[i] == attention[best])
    assert forms[alone]["micro_batches_asked"] == pytest.approx(2 * (1 + forms[alone]["way_s"] / forms[alone]["ffn_s"]))
    assert batches[best] == 2
    assert every[alone]["output_tokens_per_s"] < 0.8 * every[best]["output_tokens_per_s"]
    assert min(forms[alone]["attention_bubble"], forms[alone]["ffn_bubble"]) > 0.3
    assert min(forms[best]["attention_bubble"], forms[best]["ffn_bubble"]) < 0.1


def closed_form_step(form, num_micro_batches, num_layers=80):
    """Of docs/parallel.md: full where m times the longer side covers the way of a micro-batch through a layer, else with idle sides."""
    longest = max(form["attention_s"], form["ffn_s"])
    way = form["attention_s"] + form["ffn_s"] + 2 * form["way_s"]
    if num_micro_batches * longest >= way:
        return way + longest * (num_micro_batches * num_layers - 1)
    return num_layers * way + (num_micro_batches - 1) * longest


def test_the_answer_says_which_ratio_and_what_the_others_take():
    lengths = "prompt_tokens: 500, output_tokens: 100"
    asked = ask("llama-3.1-8b", f"{{poisson: {{requests_per_s: 30, num_requests: 200, {lengths}}}}}", "{ttft: {p99: 400 ms}, tpot: {p99: 30 ms}}",
                "{gpus: 1..4, placement: {dp: auto, ffn_instances: auto, num_micro_batches: 1..3, replicas: auto}}")  # fmt: skip
    results = [answer(driver.explore(asked, threads=threads)) for threads in (1, 3)]
    for result in results:
        result["space"].pop("wall_s")
    assert json.dumps(results[0]) == json.dumps(results[1])
    result = results[0]
    kinds = result["attention_ffn"]
    assert kinds["together"] is not None
    assert kinds["best"]["num_gpus"] >= 2
    assert "attention + " in kinds["best"]["words"]
    assert result["best"]["id"] in (kinds["best"]["id"], kinds["together"]["id"])
    form = kinds["best"]["closed_form"]
    assert form["balance"] == pytest.approx(form["attention_s"] / form["ffn_s"])
    assert 0 <= form["ffn_bubble"] < 1
    said = text.whole(result)
    assert f"With attention and FFNs on GPUs of their own the best is {text.gpus_words(kinds['best'])}" in said
    assert "micro-batches asked" in said
    assert not [left for left in result["space"]["left_out"] if "model" in left["reason"]]


def test_words_of_plans_with_ffns_apart_and_contexts_split():
    mesh = ["placement.dp=8", "placement.ep=8", "placement.ffn_instances=8", "placement.num_micro_batches=3"]
    assert words([*mesh, "placement.replicas=1"]) == "8 attention + 8 FFN GPUs (EP8), 3 micro-batches"
    assert words([*mesh, "placement.replicas=2", "engine.max_num_seqs=64"]) == (
        "2 × [8 attention + 8 FFN GPUs (EP8), 3 micro-batches], max_num_seqs 64"
    )
    # What is not searched is the scenario's own.
    own = {"dp": "2", "tp": "2", "ffn_instances": "2", "ffn_tp": "4", "ffn_schedule": "lock", "num_micro_batches": "1"}
    assert words(["placement.num_micro_batches=2", "placement.replicas=1"], own) == "4 attention (TP2) + 8 FFN GPUs (TP4), 2 micro-batches, locked"
    without = ["placement.dp=4", "placement.ffn_instances=0", "placement.num_micro_batches=1", "placement.replicas=2"]
    assert words(without, own) == "2 × DP4"
    split = ["placement.tp=2", "placement.cp=4", "placement.cp_weights=split", "placement.cp_prefill=ring", "placement.replicas=1"]
    assert words(split) == "1 × TP2 CP4 (ring)"
    assert words(["placement.dp=4", "placement.dp_rows=balanced"]) == "1 × DP4 (even rows)"
    assert words([*split, "placement.cp_decodes=dealt"]) == "1 × TP2 CP4 (ring, decodes dealt out)"
