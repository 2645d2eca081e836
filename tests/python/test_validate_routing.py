"""Experts that tokens chose, from executed/experts.csv to validation.json and the page."""

import json
import math
import pathlib

import pytest
from validation_runs import SCENARIO, Validation

from orrery.validation.routing import choice_probabilities, executed_rows, is_another_load, routing

PATH = pathlib.Path("experts.csv")


def line(rows, rank=0, first=0, op="layers.0.shuffle", copy=0, name="a"):
    """A line of experts.csv with its number, as typed_csv.rows gives it."""
    return 2 + rank, {"name": name, "op": op, "copy": copy, "first": first, "rows": rows}


def gemm(active, groups, ranks=(0,), op="layers.0.experts.gate_up"):
    return {"op": op, "copy": 0, "ranks": list(ranks), "body": {"dims": {"active": active, "groups": groups}}}


def test_rows_of_ranks_add_up_where_their_experts_lie():
    lines = [line("3 0 5"), line("1 1 0", rank=1), line("4 4", rank=2, first=3), line("7", copy=1), line("9", name="b")]
    steps = executed_rows(PATH, lines)
    assert steps["a"] == {("layers.0.shuffle", 0): [4, 1, 5, 4, 4], ("layers.0.shuffle", 1): [7]}
    assert steps["b"] == {("layers.0.shuffle", 0): [9]}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (line("3 x"), "column rows: found '3 x', expected each a whole number"),
        (line("3 -1"), "column rows: found '3 -1'"),
        (line(""), "column rows: found ''"),
        (line("3", first=10**12), "found 1000000000001 experts, expected at most 65536"),
    ],
)
def test_rows_that_no_experts_have_name_file_and_line(bad, words):
    with pytest.raises(ValueError, match=f"experts.csv:2: {words}"):
        executed_rows(PATH, [bad])


def test_the_mean_over_layers_and_the_busiest_expert():
    # Rows 6, 2, 0, 0: two with rows, the busiest has 6 of a mean of 2. Rows 2, 2, 2, 2: four, the busiest is the mean.
    found = routing([gemm(3, 4)], {("s", 0): [6, 2, 0, 0], ("s", 1): [2, 2, 2, 2]})
    assert (found["experts"], found["layers"], found["predicted_active"]) == (4, 2, 3)
    assert (found["executed_active"], found["least_active"]) == (3, 2)
    assert (found["busiest"], found["most_busy"]) == (2.0, 3.0)


@pytest.mark.parametrize(
    "ops",
    [
        [gemm(6, 8, ranks=(0, 1))],  # tensor parallel: both ranks hold slices of all eight
        [gemm(4, 4, ranks=(0,)), gemm(2, 4, ranks=(1,))],  # expert parallel: four each
    ],
)
def test_expected_experts_count_once_however_they_are_split(ops):
    assert routing(ops, {("s", 0): [1] * 8})["predicted_active"] == 6


def test_without_counts_there_is_nothing_to_say():
    assert routing([gemm(3, 4)], {}) is None
    assert routing([], {("s", 0): [0, 0]})["predicted_active"] is None


def test_the_comparison_says_how_unevenly_experts_were_chosen(tmp_path):
    validation = Validation(tmp_path)
    validation.scenario.write_text(SCENARIO.replace("llama-3.1-8b", "qwen3-30b-a3b, expert_load: uniform"), encoding="utf-8")
    assert validation.result()["steps"][0]["routing"] is None
    experts = tmp_path / "out" / "executed" / "experts.csv"
    rows = " ".join(["1"] * 32 + ["0"] * 96)  # 8 tokens choose 8 of 128 each: 52 experts where they choose evenly
    experts.write_text(f"name,op,copy,rank,first,rows\ndecode_graph,layers.0.shuffle,0,0,0,{rows}\n", encoding="utf-8")
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "experts with rows" in out
    steps = json.loads((tmp_path / "out" / "validation.json").read_text())["steps"]
    found = next(step for step in steps if step["name"] == "decode_graph")["routing"]
    assert (found["predicted_active"], found["executed_active"], found["busiest"]) == (52, 32, 4)
    assert "another load than the predicted one in decode_graph" in err
    assert 'id="experts-table"' in (tmp_path / "out" / "validation.html").read_text(encoding="utf-8")


def shuffle(topk):
    return {"op": "s", "copy": 0, "ranks": [0], "body": {"kind": "kernel", "name": "index_shuffling", "dims": {"topk": topk}}}


def test_two_of_three_experts_are_chosen_by_their_shares():
    # Of two draws from 0.5, 0.25, 0.25 with replacement 1 - 0.5^c and twice 1 - 0.75^c sum to 2 at c = 3.29...
    chosen = choice_probabilities([0.5, 0.25, 0.25], 2)
    assert sum(chosen) == pytest.approx(2)
    draws = math.log(1 - chosen[0]) / math.log(0.5)
    assert chosen[1] == chosen[2] == pytest.approx(1 - 0.75**draws)
    assert choice_probabilities([0.7, 0.3], 1) == [0.7, 0.3]


def test_rows_as_the_load_says_are_no_other_load():
    shares = [0.4, 0.3, 0.2, 0.1]
    rows = [round(1000 * part) for part in choice_probabilities(shares, 2)]
    found = routing([shuffle(2)], {("s", 0): rows}, shares)
    assert found["apart"] == 0 and not is_another_load(found)
    assert found["predicted_busiest"] == pytest.approx(found["busiest"], rel=0.01)


def test_rows_of_an_even_router_are_another_load_than_a_skewed_one():
    # Half of the choices fall on each of two experts where 0.9 and 0.1 were expected: 0.4 of them elsewhere.
    found = routing([shuffle(1)], {("s", 0): [5000, 5000]}, [0.9, 0.1])
    assert found["apart"] == pytest.approx(0.4, abs=0.01) and is_another_load(found)


def test_few_choices_that_fall_apart_by_chance_are_no_other_load():
    # 8 choices among 8 experts: counts of 0 to 3 where 1 is the mean.
    assert not is_another_load(routing([shuffle(1)], {("s", 0): [2, 0, 1, 3, 1, 0, 1, 0]}))
