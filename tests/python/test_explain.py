"""`orrery explain`: the rows of each price, and what each correction did to it."""

import json
import pathlib
import re

import orrery
import pytest
from orrery import cli, explain, layers

SCENARIO = "scenarios/validate/fit_8b.yaml"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(capsys, *arguments):
    """Exit code and output of `orrery explain SCENARIO ...`."""
    code = cli.main(["explain", SCENARIO, *arguments])
    return code, "".join(capsys.readouterr())


def test_the_corrections_stand_in_one_list_each_with_a_name_of_its_own_and_a_source():
    found = explain.corrections()
    names = [correction["name"] for correction in found]
    assert len(set(names)) == len(names)
    assert all(correction["source"] for correction in found)
    assert names.index("warm L2") < names.index("eager gap") < names.index("power limit") < names.index("engine")


def test_the_documented_table_is_the_list():
    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    table = text.split("**Corrections of a price**")[1].split("\n\n")[1]
    rows = re.findall(r"^\| (op|step) \| ([^|]+) \|", table, re.MULTILINE)
    assert rows == [(correction["of"], correction["name"]) for correction in explain.corrections()]


def test_prompts_are_explained_too(capsys):
    code, text = run(capsys, "--prefill", "512")
    assert code == 0
    assert "host of prefill" in text and "device, eager" in text


def test_numbers_of_rows_are_new_where_that_is_said(capsys):
    scenario = orrery.load(SCENARIO)
    batch = orrery.Batch(prefill=[orrery.PrefillChunk(query=512)])
    again, first = (explain.step(scenario, batch, are_rows_seen=seen) for seen in (True, False))
    names = [[correction["name"] for correction in found["corrections"]] for found in (again, first)]
    assert [name for name in names[1] if name not in names[0]] == ["rows that are new to the host"]
    assert first["duration_s"] > again["duration_s"] and again["prepares"]
    code, text = run(capsys, "--prefill", "512", "--new-rows")
    assert code == 0 and "rows that are new to the host" in text
    code, text = run(capsys, "--prefill", "512", "--new-rows", "--set", "engine.profile=vllm")
    assert code == 2 and "no host.new_rows" in text


@pytest.mark.parametrize(
    "name, seconds",
    [("serve_8b_azure_50", 324 * 1.6e-6), ("serve_v2_lite_dp2_ep2", 694 * 1.6e-6 * 1.75)],
    ids=["one stream", "several streams"],
)
def test_new_rows_take_as_long_as_a_rank_has_ops(name, seconds):
    scenario = orrery.load(f"scenarios/validate/{name}.yaml")
    batch = orrery.Batch(prefill=[orrery.PrefillChunk(query=512)])
    again, first = (explain.step(scenario, batch, are_rows_seen=seen)["duration_s"] for seen in (True, False))
    assert first - again == pytest.approx(seconds, rel=1e-6)


def test_corrections_lead_from_the_rows_to_the_price():
    scenario = orrery.load(SCENARIO)
    found = explain.step(scenario, orrery.Batch(prefill=[], num_decodes=64, decode_context=64 * 1000))
    assert any(op["corrections"] for op in found["ops"])
    for op in found["ops"]:
        time = op["row_s"]
        for correction in op["corrections"]:
            assert correction["before_s"] == pytest.approx(time, rel=1e-12), op["name"]
            time = correction["after_s"]
        assert time == pytest.approx(op["time_s"], rel=1e-12), op["name"]


def test_the_step_takes_what_orrery_step_says():
    scenario = orrery.load(SCENARIO)
    batch = orrery.Batch(prefill=[], num_decodes=64, decode_context=64 * 1000)
    assert explain.step(scenario, batch)["device_s"] == pytest.approx(orrery.step(scenario, batch).makespan_s, rel=1e-9)


def test_a_named_op_is_shown_correction_by_correction(capsys):
    code, text = run(capsys, "--decodes", "64", "--op", "down_proj")
    assert code == 0
    assert "down_proj: gemm bf16 m=64" in text
    assert "gemm.csv" in text
    assert "at the power limit" in text


def test_json_holds_the_same(capsys):
    code, text = run(capsys, "--decodes", "64", "--json")
    assert code == 0
    assert {op["name"] for op in json.loads(text)["ops"]} >= {"embedding", "lm_head", "sample"}


@pytest.mark.parametrize("arguments, words", [
    (["--op", "no_such_op"], ["no op with 'no_such_op'", "lm_head"]),
    (["--decodes", "0"], ["a step of nothing", "--prefill"]),
])
def test_a_step_or_op_that_is_not_there_is_named(capsys, arguments, words):
    code, text = run(capsys, *arguments)
    assert code == 2
    for word in words:
        assert word in text


def test_a_context_of_no_token_is_bad_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        run(capsys, "--decodes", "1", "--context", "0")
    assert ended.value.code == 2
    assert "--context" in "".join(capsys.readouterr())


def test_layers_that_are_priced_as_one_are_all_named(capsys):
    code, text = run(capsys, "--decodes", "64", "--op", "layers.0..31.qkv_proj")
    assert code == 0
    assert text.startswith("layers.0..31.qkv_proj: gemm bf16 m=64 ") and "32 times" in text


@pytest.mark.parametrize("copies, named", [
    ({"layers.3.up": 26}, ["layers.3..28.up"]),  # dense layers stand before
    ({"layers.0.up": 12, "layers.1.up": 12}, ["layers.0,2..22.up", "layers.1,3..23.up"]),
    ({"layers.0.up": 2, "layers.1.up": 2}, ["layers.0,2.up", "layers.1,3.up"]),
    ({"layers.0.up": 1, "lm_head": 1}, ["layers.0.up", "lm_head"]),
])
def test_runs_of_layers_have_their_first_and_last(copies, named):
    assert list(layers.names(copies).values()) == named
