"""`orrery scaling`: attention over the context beside FFNs and experts over the tokens."""

import json
import math
import re

import pytest

from orrery import cli, explain, load, scaling

QWEN = "scenarios/validate/qwen3_30b.yaml"
CONTEXTS = [2048, 8192, 32768]


@pytest.fixture(scope="module")
def qwen():
    return load(QWEN)


def test_attention_of_decodes_grows_with_the_context_and_experts_do_not(qwen):
    points = [scaling.point(qwen, scaling.decodes(64, context)) for context in CONTEXTS]
    assert len({point.ffn for point in points}) == 1
    assert len({point.other.time_s for point in points}) == 1
    assert [0.85 < grows < 1.1 for grows in scaling.growth(points, CONTEXTS, "attention")[1:]] == [True, True]
    assert scaling.growth(points, CONTEXTS, "ffn")[1:] == [0, 0]
    shares = [point.share_of_attention for point in points]
    assert shares == sorted(shares) and shares[0] < 0.25 < 0.6 < shares[-1]


def test_experts_grow_with_sequences_until_all_are_chosen(qwen):
    sizes = [1, 8, 64]
    points = [scaling.point(qwen, scaling.decodes(size, 2048)) for size in sizes]
    first, second = scaling.growth(points, sizes, "ffn")[1:]
    assert 1 > first > second > 0


def test_attention_of_a_prompt_grows_by_the_square_and_its_ffn_in_proportion():
    dense = load("scenarios/validate/llama_8b.yaml")
    sizes = [8192, 16384]
    points = [scaling.point(dense, scaling.prompt(size)) for size in sizes]
    assert scaling.growth(points, sizes, "attention")[1] == pytest.approx(2, abs=0.15)
    assert scaling.growth(points, sizes, "ffn")[1] == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("name", [QWEN, "scenarios/quickstart.yaml", "scenarios/deepseek_v3_one_node.yaml"])
def test_parts_add_up_to_all_ops(name):
    scenario = load(name)
    batch = scaling.decodes(8, 1024)
    point = scaling.point(scenario, batch)
    ops = explain.step(scenario, batch)["ops"]
    parts = (point.attention, point.ffn, point.other)
    assert sum(part.time_s for part in parts) == pytest.approx(sum(op["copies"] * op["time_s"] for op in ops))
    measured = [op for op in ops if op["rows"] == "the row of the call"]
    assert sum(part.measured_s for part in parts) == pytest.approx(sum(op["copies"] * op["row_s"] for op in measured))
    assert all(0 <= part.on_rows_s <= part.time_s * (1 + 1e-12) for part in parts)
    # Layers are dense first in DeepSeek-V3: both kinds of FFN count, norms ahead of attention and projections do not.
    in_ffn = sum(op["copies"] * op["time_s"] for op in ops if any(w in op["name"] for w in ("down_proj", "experts", "router", "shuffle")))
    assert in_ffn <= point.ffn.time_s < sum(part.time_s for part in parts)


PLACEMENTS = {
    "halves": ("scenarios/validate/qwen3_30b_ep2_tbo.yaml", "placement.two_batch_overlap=false", 64),
    "FFNs apart": ("scenarios/mixtral_8x22b_attention_ffn.yaml", "placement.num_micro_batches=1", 128),
    "stages": ("scenarios/validate/llama_70b_pp2.yaml", "placement.num_micro_batches=1", 64),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_micro_batches_take_turns_and_their_ops_are_what_they_are_in_one(name):
    file, whole, sequences = PLACEMENTS[name]
    batch = scaling.decodes(sequences, 1024)

    def kinds_by_name(scenario):
        ops = explain.step(scenario, batch)["ops"]
        return {re.sub(r"^(s\d+\.)?(m\d+\.)?", "", op["name"]): kind for op, kind in zip(ops, scaling.kinds(ops))}

    together = kinds_by_name(load(file, overrides=[whole]))
    apart = kinds_by_name(load(file))
    assert {name: together[name] for name in apart if name in together} == {name: apart[name] for name in apart if name in together}
    kinds = {name.rpartition(".")[2]: kind for name, kind in apart.items()}
    assert {kinds[name] for name in ("attn_norm", "qkv_proj", "o_proj", "rope", "kv_append")} == {"other"}
    assert kinds["attn_decode"] == "attention" and kinds["ffn_norm"] == "ffn"


def test_growth_says_nothing_of_what_is_not_there():
    empty = scaling.Point(scaling.decodes(1, 1), scaling.Part(), scaling.Part(1.0), scaling.Part(1.0))
    assert all(math.isnan(grows) for grows in scaling.growth([empty, empty], [1, 2], "attention"))


@pytest.mark.parametrize(("first", "last", "found"), [(512, 2048, [512, 1024, 2048]), (1, 1, [1]), (3, 9, [4, 8, 9]), (5, 6, [6])])
def test_powers_of_two(first, last, found):
    assert scaling.powers_of_two(first, last) == found


def test_the_command_prints_three_tables_or_json(capsys):
    assert cli.main(["scaling", QWEN, "--sequences", "4", "--most", "1024", "--prompt", "512"]) == 0
    text = capsys.readouterr().out
    assert "4 decodes: one step of a replica" in text and "one prompt: one step" in text
    assert cli.main(["scaling", QWEN, "--sequences", "4", "--most", "1024", "--prompt", "512", "--json"]) == 0
    context, sequences, prompt = json.loads(capsys.readouterr().out)
    assert [point["context"] for point in context["points"]] == [512, 1024]
    assert [point["sequences"] for point in sequences["points"]] == [1, 2, 4]
    assert [point["tokens"] for point in prompt["points"]] == [512]
