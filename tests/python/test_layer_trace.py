"""A layer of experts that is one kernel from inside: where the time of SMs goes, and its trace beside that of several kernels."""

import collections
import dataclasses
import itertools
import json
import pathlib
import re

import pytest
from orrery import cli, layer_trace, spans
from orrery.perfetto import layer

HEADER = "rank,block,sm,what,layer,expert,tile,column,rows,ticket,taken_ns,turn_ns,ready_ns,begin_ns,end_ns,counted_ns\n"
SHAPE = {"hidden": 2048, "ffn": 2048, "experts": 64, "topk": 2}


def test_the_program_writes_these_columns():
    source = (pathlib.Path(__file__).resolve().parents[2] / "kernels/experts/fused_moe/trace.cpp").read_text(encoding="utf-8")
    written = "".join(re.findall(r'"([^"]*)"', source[source.index('"rank,block') :].split(";", 1)[0]))
    assert written == HEADER.replace("\n", "\\n")


def phases(block, middle, end, rank=0):
    cells = ",,,,,,,,,"
    return f"{rank},{block},{block},logits{cells},0.0,{middle},\n{rank},{block},{block},rows{cells},{middle},{end},\n"


def task(block, layer, tile, ticket, taken, turn, ready, end, counted, rank=0):
    return f"{rank},{block},{block},task,{layer},{tile},{tile},0,64,{ticket},{taken},{turn},{ready},{ready},{end},{counted}\n"


def trace(*, third_taken=105, third_turn=250, rank=0):
    """Two blocks in 1,000 ns. The second waits from 200 to 340 for the tile that the first has made at 320; at 300 the first begins a
    task that is ready from 200 on, when all rows are there, and whose ticket it has from `third_taken` on."""
    lines = [f"{rank},0,0,block,,,,,,,,,,0.0,900.0,\n", phases(0, 50, 100, rank), task(0, 1, 0, 0, 100, 100, 100, 300, 320, rank),
             task(0, 1, 1, 2, third_taken, third_turn, third_turn, 500, 510, rank), f"{rank},0,0,sums,,,,,,,640.0,,650.0,650.0,700.0,\n",
             f"{rank},0,0,sums,,,,,,,650.0,,680.0,680.0,720.0,\n", f"{rank},0,0,tail,,,,,,,,,,500.0,900.0,\n",
             f"{rank},1,1,block,,,,,,,,,,0.0,1000.0,\n", phases(1, 90, 200, rank), task(1, 2, 0, 1, 200, 200, 340, 600, 610, rank),
             task(1, 2, 1, 3, 345, 500, 520, 800, 810, rank)]  # fmt: skip
    return "".join(lines)


def split_of(tmp_path, text):
    (tmp_path / "a.csv").write_text(HEADER + text, encoding="utf-8")
    return layer_trace.splits(layer_trace.read(tmp_path / "a.csv"))


def total(split):
    return sum(getattr(split, share) for share in layer_trace.SHARES)


def test_time_of_two_blocks_by_hand(tmp_path):
    """Of 2 * 1,000 ns: routing 100 + 200, tasks 200 + 200 and 260 + 200, nothing left 500 + 200. Of the wait of 140 a task that the first
    block has is ready from 200 to 300, from 320 to 340 the one that is waited for."""
    (found,) = split_of(tmp_path, trace())
    shares = {"routing": 300, "first_layer": 400, "second_layer": 460, "task_ready": 0, "task_queued": 120, "none_ready": 20, "no_task_left": 700, "sums": 70}
    assert {name: getattr(found, name) * 2000 for name in shares} == pytest.approx(shares)
    assert found.duration_s == pytest.approx(1e-6) and total(found) == pytest.approx(1)


def test_a_ready_task_whose_ticket_is_free_is_what_a_waiting_block_could_have_taken(tmp_path):
    (found,) = split_of(tmp_path, trace(third_taken=260, third_turn=270))
    assert [round(getattr(found, name) * 2000) for name in ("task_ready", "task_queued", "none_ready")] == [60, 60, 20]


def test_rows_that_become_fp8_are_ready_when_the_last_of_the_tile_is(tmp_path):
    """Those of the tile that is waited for at 330, not at 320: from 300 to 330 none is ready."""
    (found,) = split_of(tmp_path, trace() + "0,0,0,quantize,,,0,,,,321.0,,322.0,322.0,330.0,\n")
    assert [round(getattr(found, name) * 2000) for name in ("task_queued", "none_ready")] == [110, 30]


def test_ranks_are_apart(tmp_path):
    found = split_of(tmp_path, trace() + trace(rank=1))
    assert [one.rank for one in found] == [0, 1] and [total(one) for one in found] == pytest.approx([1, 1])
    assert "rank 1" in layer_trace.text(found)


@pytest.mark.parametrize(("text", "said"), [
    (HEADER, "holds no block"),
    (HEADER + trace().replace("task,1,0", "task,3,0"), "column layer: found '3', expected a whole number, 1 to 2"),
    (HEADER + trace().replace("100,100,100,100,300", "100,100,100,100,90"), "not in order"),
    (HEADER + trace().replace("64,1,200", "64,1,"), "a task without taken_ns"),
    (HEADER + trace()[:-1], "has no end: the file is cut"),
    (HEADER.replace("block,", "", 1) + trace(), "found no column block"),
])  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        layer_trace.read(tmp_path / "a.csv")


@pytest.mark.parametrize("tokens", [1, 128, 1024, 8192])
@pytest.mark.parametrize("is_fp8", [False, True])
def test_shares_of_simulated_tiles_add_up(tokens, is_fp8):
    for order, ranks in itertools.product(("behind", "by_layer", "ready_first"), (1, 2)):
        (found,) = layer_trace.splits(layer_trace.simulated(tokens=tokens, is_fp8=is_fp8, order=order, ranks=ranks, **SHAPE))
        assert total(found) == pytest.approx(1) and all(0 <= getattr(found, share) <= 1 for share in layer_trace.SHARES)
        if order == "ready_first":  # one may become ready while an SM waits for another
            assert found.task_ready < 1e-3


def test_who_looks_ahead_does_not_wait_while_another_task_is_ready():
    """Few SMs and few tiles between the layers of an expert: a first layer is ready while SMs wait for a second."""
    shape = {"tokens": 64, "hidden": 1024, "ffn": 256, "experts": 8, "topk": 2, "num_sms": 13}
    behind, ahead = (layer_trace.splits(layer_trace.simulated(order=order, **shape))[0] for order in ("behind", "ready_first"))
    assert behind.task_ready > 1e-3 and ahead.task_ready < 0.1 * behind.task_ready


def test_every_column_of_every_tile_is_a_task_once():
    spans = [span for span in layer_trace.simulated(tokens=1024, **SHAPE) if span.what == "task"]
    count = collections.Counter((span.layer, span.tile, span.column) for span in spans)
    tiles = {span.tile for span in spans}
    assert set(count.values()) == {1} and len(count) == len(tiles) * (16 + 8)


def events(file):
    found = collections.defaultdict(list)
    for event in json.loads(file.read_text(encoding="utf-8"))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def no_two_at_once(spans):
    by_row = collections.defaultdict(list)
    for event in spans:
        by_row[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in by_row.values():
        assert all(one[1] <= after[0] + 1e-6 for one, after in itertools.pairwise(sorted(row)))


def test_a_measured_layer_becomes_a_trace(workdir):
    (workdir.directory / "a.csv").write_text(HEADER + trace(), encoding="utf-8")
    result = workdir.orrery("trace", "layer", "a.csv", "-o", "out.json")
    assert result.returncode == 0, result.stderr
    assert "rank 0" in result.stdout and "6.00%" in result.stdout  # 120 of 2,000
    found = events(workdir.directory / "out.json")
    no_two_at_once(found["X"])
    waits = [event for event in found["X"] if event["cat"] == "wait"]
    assert [(event["name"], event["ts"], event["dur"]) for event in waits] == [("waits: layer 2, expert 0", 0.2, pytest.approx(0.14))]
    busy = sum(event["dur"] for event in found["X"] if event["cat"].startswith("layer"))
    assert busy == pytest.approx(0.86)
    assert len([event for event in found["X"] if event["cat"] == "sums"]) == 2


SPANS = ("op,copy,rank,stream,kind,basis,start_s,end_s\n"
         "experts,0,0,0,kernel,measured,0.000000000,0.000100000\n"
         "combine,0,1,2,comm,measured,0.000100000,0.000150000\n")  # fmt: skip
LAYER = ("moe", "qwen3-30b-a3b", "--tokens", "2048", "--machine", "hgx-h200", "--dp", "2", "--ep", "2")


def test_of_layers_in_a_chain_the_middle_one_is_shown_from_its_begin():
    def spans_of(layer, begin_s):
        return [spans.TimelineSpan(f"{op}#{layer}", 0, rank, 0, "kernel", "measured", begin_s + 1e-6 * rank, begin_s + 5e-6)
                for op in ("router", "experts") for rank in (0, 1)]  # fmt: skip

    chain = [span for layer in range(3) for span in spans_of(layer, 1e-5 * layer)]
    found = layer.one_layer(chain)
    assert [(span.op, span.rank, span.start_s) for span in found] == [
        ("router", 0, 0.0), ("router", 1, pytest.approx(1e-6)), ("experts", 0, 0.0), ("experts", 1, pytest.approx(1e-6))]  # fmt: skip
    assert [span.end_s for span in found] == pytest.approx([5e-6] * 4)
    plain = [dataclasses.replace(span, op="layers.0.router") for span in chain]
    assert layer.one_layer(plain) == plain and layer.one_layer([]) == []


def test_one_kernel_stands_beside_several_simulated_and_measured(tmp_path, capsys):
    (tmp_path / "measured" / "deep").mkdir(parents=True)
    (tmp_path / "measured" / "deep" / "0.spans.csv").write_text(SPANS, encoding="utf-8")
    (tmp_path / "measured" / "a.blocks.csv").write_text(HEADER + trace() + trace(rank=1), encoding="utf-8")
    (tmp_path / "measured" / "rows.csv").write_text("case,text\n0,scout\n", encoding="utf-8")
    file = tmp_path / "out.json"
    assert cli.main([*LAYER, "--timeline", str(file), "--measured", str(tmp_path / "measured")]) == 0
    shown = capsys.readouterr().out
    assert "waits, a task ready" in shown and str(file) in shown
    found = events(file)
    names = [event["args"]["name"] for event in found["M"] if event["name"] == "process_name"]
    assert len(names) == 5 and "shuffling, eager, simulated" in names[0] and "persistent, simulated tile by tile" in names[1]
    assert names[2:] == ["a.blocks.csv, measured, rank 0, 1.0 us", "a.blocks.csv, measured, rank 1, 1.0 us", "deep/0.spans.csv, measured, 150.0 us"]
    no_two_at_once(found["X"])
    by_process = collections.defaultdict(list)
    for event in found["X"]:
        by_process[event["pid"]].append(event)
    assert {event["args"]["op"] for event in by_process[0]} >= {"router", "dispatch.all_to_all", "experts.gate_up", "combine"}
    tiles = [event for event in by_process[1] if event["cat"].startswith("layer")]
    assert len({event["tid"] for event in tiles}) == 132
    # 64 experts of 2,048 * 8 / 64 = 128 rows on average: six columns of 128 of the first layer, eight of 256 of the second.
    assert {event["args"]["column"] for event in tiles if event["cat"] == "layer 1"} == set(range(0, 768, 128))
    assert {event["args"]["column"] for event in tiles if event["cat"] == "layer 2"} == set(range(0, 2048, 256))
    assert [event["args"]["op"] for event in by_process[4]] == ["experts", "combine"]


@pytest.mark.parametrize(("words", "said"), [
    (["--measured", "."], "--measured without --timeline"),
    (["--timeline", "out.json", "--ablation"], "no design persistent here"),
    (["--timeline", "out.json", "--measured", "nowhere"], "is no directory"),
    (["--timeline", "out.json", "--measured", "empty"], "holds no spans"),
])  # fmt: skip
def test_a_timeline_that_cannot_be_says_why(workdir, words, said):
    (workdir.directory / "empty").mkdir()
    result = workdir.orrery("moe", "qwen3-30b-a3b", *words)
    assert result.returncode == 2 and said in result.stderr
    assert not (workdir.directory / "out.json").exists()


def test_a_timeline_that_is_there_is_kept(workdir):
    (workdir.directory / "out.json").write_text("mine", encoding="utf-8")
    result = workdir.orrery("moe", "qwen3-30b-a3b", "--timeline", "out.json")
    assert result.returncode == 2 and "--force" in result.stderr
    assert (workdir.directory / "out.json").read_text(encoding="utf-8") == "mine"
