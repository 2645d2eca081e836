"""Traces of known kernels become the provider and the profile of their engine: `orrery import torch-profile`."""

import csv
import gzip
import json
import pathlib

import orrery
import pytest
import trace_samples as samples
from orrery import cli
from orrery.importers.torch_profile import command, host, kinds, matching, plan, steps, trace

CASES = {
    "transformers": ("transformers.json", samples.transformers, []),
    "vllm": ("vllm.pt.trace.json.gz", samples.vllm, ["--context", "1024"]),
    "sglang": ("sglang.trace.json", samples.sglang, ["--batch", "decode=16@16384"]),
    "trtllm": ("trtllm.sqlite", samples.trtllm, []),
}


def imported(tmp_path, engine, *, more=(), path=None):
    """Runs the command; the folder that it wrote."""
    name, make, options = CASES[engine]
    path = path or make(tmp_path / name)
    model = samples.config(tmp_path / "config.json")
    words = ["import", "torch-profile", str(path), "--engine", engine, "--model", str(model), "-o", str(tmp_path / "learned"), *options, *more]
    return cli.main(words), tmp_path / "learned" / engine


def rows(folder, kernel):
    with (folder / f"{kernel}.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def matches_of(tmp_path, engine):
    name, make, options = CASES[engine]
    found = trace.read(make(tmp_path / name))
    batch = steps.parse_batch(options[1]) if "--batch" in options else None
    context = int(options[1]) if "--context" in options else None
    of = steps.find(found, requests=None, batch=batch, context=context)
    deployed = plan.Deployed(str(samples.config(tmp_path / "config.json")), "single-h200", "vllm", is_packed=bool(steps.is_packed(of)))
    plans = plan.Plans(deployed)
    return [matching.match(step, plans.ops(step.batch), 5.0 if step.is_graph else 1.5) for step in of]


@pytest.mark.parametrize("engine", CASES)
def test_at_least_95_percent_of_a_steps_gpu_time_is_of_ops(tmp_path, engine):
    shares = command.coverage(matches_of(tmp_path, engine))
    assert shares.matched >= 0.95
    assert shares.left == 0
    assert shares.matched + shares.inputs + shares.left == pytest.approx(1)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_each_kernel_is_matched_to_the_op_that_it_was_made_for(tmp_path, engine):
    parts = {"embedding": "embedding", "add_rms_norm": "norm", "rope": "rope", "kv_append": "kv", "attention_decode": "attention",
             "attention_prefill": "attention", "attention_packed": "attention", "silu_mul": "silu", "sample": "sample"}  # fmt: skip
    gemms = {(samples.QKV, samples.HIDDEN): "qkv", (samples.HIDDEN, samples.HEADS * samples.HEAD_DIM): "o", (2 * samples.FFN, samples.HIDDEN): "gate_up",
             (samples.HIDDEN, samples.FFN): "down", (samples.VOCAB, samples.HIDDEN): "lm_head"}  # fmt: skip
    for each in matches_of(tmp_path, engine):
        batch = each.step.batch
        made = samples.transformers_model(batch.num_decodes, batch.decode_context // batch.num_decodes) if engine == "transformers" else None
        if made is None:
            tokens = batch.num_decodes or batch.prefill[0][0]
            made = [*samples.vllm_model(tokens, tokens, is_prefill=not batch.num_decodes), *samples._vllm_tail(batch.num_decodes or 1)]
        expected, found = {}, {}
        for launch in made:
            expected[launch.part] = expected.get(launch.part, 0) + launch.time
        for op in each.ops:
            sizes = dict(op.op.dims)
            part = gemms[sizes["n"], sizes["k"]] if op.op.kernel == "gemm" else parts[op.op.kernel]
            found[part] = found.get(part, 0) + sum(kernel.duration for kernel in op.kernels)
        assert found == pytest.approx(expected)


def test_a_row_is_the_sum_of_the_kernels_of_its_op(tmp_path):
    code, folder = imported(tmp_path, "transformers")
    assert code == 0
    attention = {(row["queries"], row["keys"]): float(row["time_us"]) for row in rows(folder, "attention_packed")}
    # two gathers of 4 us, a copy of 5, a product of 20 + batch x context / 1000 that the next kernel waits for, and starts 1 us later
    assert attention["16", "32000"] == pytest.approx(8 + 5 + 20 + 32 + 1)
    assert attention["4", "2000"] == pytest.approx(8 + 5 + 20 + 2 + 1)
    gemm = {(row["m"], row["n"], row["k"]): float(row["time_us"]) for row in rows(folder, "gemm")}
    assert gemm["4", str(samples.QKV), "2048"] == pytest.approx(6 + 3 + 3)  # q, k and v apart
    assert gemm["4", str(2 * samples.FFN), "2048"] == pytest.approx(9 + 9)  # the activation stands between


def test_in_a_graph_a_row_holds_the_pauses_between_its_kernels(tmp_path):
    code, folder = imported(tmp_path, "vllm")
    assert code == 0
    found = {row["batch"]: row for row in rows(folder, "attention_decode")}
    assert float(found["8"]["time_us"]) == pytest.approx(1 + 12.5 + 2 * 1.0)  # two kernels, each followed by a pause of 1 us
    assert {row["launched"] for row in found.values()} == {"graph"}
    assert {row["launched"] for row in rows(folder, "attention_prefill")} == {"eager"}


def test_what_has_no_kernel_of_its_own_is_included_in_another(tmp_path):
    _, sglang = imported(tmp_path, "sglang")
    assert (sglang / "includes.csv").read_text(encoding="utf-8").splitlines()[1:] == ["rope,bf16,kv_append,0"]
    _, trtllm = imported(tmp_path, "trtllm")
    assert (trtllm / "includes.csv").read_text(encoding="utf-8").splitlines()[1:] == [
        "attention_decode,bf16,kv_append,0",
        "attention_decode,bf16,rope,0",
    ]


def test_what_was_imported_predicts_the_step_that_was_traced(tmp_path):
    code, folder = imported(tmp_path, "vllm")
    assert code == 0
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        f"""model: {{config: {tmp_path / "config.json"}}}
machine: single-h200
provider: {folder}
engine: {{profile: {folder}.engine.yaml}}
workload: {{static_batch: {{batch: 8, prompt_tokens: 1000, output_tokens: 20}}}}
seed: 1
""",
        encoding="utf-8",
    )
    loaded = orrery.load(scenario)
    explained = orrery._core.explain_step(loaded, orrery._core.Batch(num_decodes=8, decode_context=8 * 1024))
    assert {op["basis"] for op in explained["ops"]} == {"measured"}
    # every kernel and the pause of 1 us behind it; the kernels after the graph are launched 6 us apart, which hides none of them
    made = [*samples.vllm_model(8, 8, is_prefill=False), *samples._vllm_tail(8)]
    in_graph = sum(launch.time + 1.0 for launch in made if not launch.op)
    after = sum(launch.time for launch in made if launch.op)
    assert explained["device_s"] * 1e6 == pytest.approx(in_graph + after, rel=0.02)


def test_the_host_of_an_eager_engine_is_timed_per_op_and_step(tmp_path):
    found = host.host_of(matches_of(tmp_path, "transformers"), [], {})
    launches = len(samples.transformers_model(4, 500))
    ops = 4 + samples.LAYERS * 10  # embedding, norm, lm_head, sample; norm, qkv, rope, kv, attention, o, norm, gate_up, silu, down
    # one op of the plan is several kernels here, 12 us apart
    assert found.eager_launch.seconds * 1e6 == pytest.approx(12 * (launches - 1) / ops, rel=0.01)
    assert found.launch_mode == "eager"
    assert not found.is_async


def test_steps_without_a_profiler_replace_its_slow_host(tmp_path):
    timings = tmp_path / "steps.csv"
    lines = ["prefill,num_decodes,decode_context,prepare_s,compute_s,update_s,traced"]
    lines += [f",{n},{n * 600},{0.0001 + 0.00001 * n},0.0034,0,0" for n in (1, 2, 4, 8) for _ in range(3)]
    timings.write_text("\n".join([*lines, ",4,2000,1,1,1,1"]) + "\n", encoding="utf-8")
    of = host.read_timings(timings)
    assert len(of) == 12  # the traced one is left out
    found = host.host_of(matches_of(tmp_path, "transformers"), of, {each.batch: 34 for each in of})
    assert found.eager_launch.seconds == pytest.approx(0.0034 / 34)
    assert found.scheduler_per_sequence.seconds == pytest.approx(1e-5, rel=1e-6)
    assert found.scheduler_base.seconds == pytest.approx(1e-4, rel=1e-6)


def test_two_ranks_are_pooled(tmp_path):
    second = samples.vllm(tmp_path / "rank1.pt.trace.json.gz", rank=1)
    code, folder = imported(tmp_path, "vllm", more=[])
    alone = {row["batch"]: int(row["samples"]) for row in rows(folder, "attention_decode")}
    name, make, options = CASES["vllm"]
    words = ["import", "torch-profile", str(make(tmp_path / name)), str(second), "--engine", "vllm", "--model", str(tmp_path / "config.json"), "--force",
             "-o", str(tmp_path / "learned"), *options]  # fmt: skip
    assert code == 0 and cli.main(words) == 0
    assert {row["batch"]: int(row["samples"]) for row in rows(folder, "attention_decode")} == {batch: 2 * count for batch, count in alone.items()}


def test_contexts_come_from_the_requests_of_a_client(tmp_path):
    found = trace.read(samples.vllm(tmp_path / "vllm.json.gz"))
    begin = samples.BASE_NS / 1e9
    bench = tmp_path / "bench.json"
    # eight requests of 900 tokens that have had three tokens each before the trace, and give more until after it
    bench.write_text(
        json.dumps({"start_epoch_s": [begin - 1] * 8, "input_lens": [900] * 8, "ttfts": [0.5] * 8, "itls": [[0.1, 0.1, 1e4]] * 8}), encoding="utf-8"
    )
    of = steps.find(found, requests=steps.Requests([bench]), batch=None, context=None)
    assert [each.batch for each in of if each.batch] == [steps.BatchOf((), 8, 8 * 903)] * 4
    assert all("do not agree" in each.batch_from for each in of if not each.batch)


def test_a_host_of_two_speeds_is_as_fast_as_in_the_middle_unless_the_gpu_is_what_takes_longer(tmp_path, monkeypatch):
    timings = tmp_path / "steps.csv"
    lines = [f",4,2000,0,{seconds},0" for seconds in (0.0034, 0.0051) for _ in range(6)]
    timings.write_text("\n".join(["prefill,num_decodes,decode_context,prepare_s,compute_s,update_s", *lines]) + "\n", encoding="utf-8")
    of = host.read_timings(timings)
    matches, num_ops = matches_of(tmp_path, "transformers"), {each.batch: 34 for each in of}
    assert host.host_of(matches, of, num_ops).eager_launch.seconds == pytest.approx(0.00425 / 34)
    monkeypatch.setattr(host, "_device_us", lambda _: 3000.0)  # of which the faster steps are no more than 1.25 times
    assert host.host_of(matches, of, num_ops).eager_launch.seconds == pytest.approx(0.0051 / 34)


def test_a_trace_of_another_model_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(samples.CONFIG, "num_hidden_layers", samples.LAYERS + 1)
    code, folder = imported(tmp_path, "vllm")
    assert code == 2 and not folder.exists()
    assert "found 3 times attention" in (said := capsys.readouterr().err) and "expected 4, once for each layer" in said
    monkeypatch.setitem(samples.CONFIG, "num_hidden_layers", samples.LAYERS)
    monkeypatch.setitem(samples.CONFIG, "intermediate_size", 4096)
    code, _ = imported(tmp_path, "transformers")
    assert code == 2 and "found no kernel for" in capsys.readouterr().err


def test_an_unknown_kernel_is_left_over_under_its_name(tmp_path, capsys, monkeypatch):
    plain = samples.sglang_model

    def with_stranger(decodes):
        found = plain(decodes)
        return [*found[:8], samples.Launch("void mystery::frobnicate<7>", 11.0), *found[8:]]

    monkeypatch.setattr(samples, "sglang_model", with_stranger)
    code, _ = imported(tmp_path, "sglang")
    said = capsys.readouterr().out
    assert code == 0 and "not matched: 55.0 us of void mystery::frobnicate<7>" in said
    assert kinds.kind_of("void mystery::frobnicate<7>") == kinds.UNKNOWN


def test_events_are_the_same_wherever_the_text_is_cut(tmp_path, monkeypatch):
    path = samples.transformers(tmp_path / "trace.json")
    whole = trace.read(path)
    monkeypatch.setattr(trace, "_CHUNK", 1013)
    cut = trace.read(path)
    assert cut.kernels == whole.kernels and cut.annotations == whole.annotations
    assert (cut.device, cut.base_ns) == ("NVIDIA H200", samples.BASE_NS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "found no traceEvents"),
        (b'{"a": 1}', "found no traceEvents"),
        (b'{"traceEvents": []}', "found no kernel of a GPU"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": ', "a trace cut off?"),
        (gzip.compress(b'{"traceEvents": [{"ph": "X"}, ', mtime=0)[:-9], "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b"SQLite format 3\x00 and no more", "expected what 'nsys export --type sqlite' writes"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, capsys, content, said):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    code, folder = imported(tmp_path, "vllm", path=path)
    assert code == 2 and not folder.exists()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--batch", "decode=0@0"], "expected at least one sequence"),
        (["--batch", "decoding=3"], "expected prefill=QUERY+CONTEXT"),
        (["--machine", "abacus"], "--machine"),
        (["--profile", "abacus"], "unknown engine profile 'abacus'"),
        (["--timings", "nowhere.csv"], "expected timings of steps"),
        (["--requests", "nowhere.json"], "expected what 'orrery profile load' writes"),
    ],
)
def test_bad_options_are_refused_with_what_is_expected(tmp_path, capsys, more, said):
    code, folder = imported(tmp_path, "vllm", more=more)
    assert code == 2 and not folder.exists()
    assert said in capsys.readouterr().err


def test_an_import_is_replaced_with_force_alone(tmp_path, capsys):
    assert imported(tmp_path, "sglang")[0] == 0
    assert imported(tmp_path, "sglang")[0] == 2
    assert "--force" in capsys.readouterr().err
    assert imported(tmp_path, "sglang", more=["--force"])[0] == 0


def test_a_call_that_holds_the_host_up_is_of_the_step_and_not_of_each_launch(tmp_path):
    plain = host.host_of(matches_of(tmp_path, "transformers"), [], {})
    assert plain.stall.seconds == 0
    held_up = matches_of(tmp_path, "transformers")
    for each in held_up:  # 30 ms before the launches of the second half
        for op in each.ops[len(each.ops) // 2 :]:
            for kernel in op.kernels:
                kernel.launched += 30_000
    found = host.host_of(held_up, [], {})
    assert found.stall.seconds == pytest.approx(0.03, rel=0.001)
    assert found.eager_launch.seconds == pytest.approx(plain.eager_launch.seconds, rel=0.01)


def held_up(found, pauses_us):
    """The launches from the first call of attention on, later by as much in each step."""
    for each, pause in zip(found, pauses_us, strict=True):
        first = next(index for index, op in enumerate(each.ops) if op.op.kernel == "attention_packed")
        for kernel in [each.ops[first].kernels[-1], *(kernel for op in each.ops[first + 1 :] for kernel in op.kernels)]:
            kernel.launched += pause
    return found


def test_one_call_for_the_attention_of_all_sequences_is_recognised_by_its_shapes(tmp_path):
    found = trace.read(samples.transformers(tmp_path / "transformers.json"))
    of = steps.find(found, requests=None, batch=None, context=None)
    assert [steps.attention_sizes(step) for step in of] == [(1, 500), (4, 2000), (4, 2004), (16, 32000)]
    assert steps.is_packed(of) is True
    assert steps.is_packed(of[:1]) is None  # of one sequence
    for kernel in found.kernels:
        kernel.shapes = tuple((1, 16, 1, 128) if len(shape) == 4 else shape for shape in kernel.shapes)
    assert steps.is_packed(of) is False
    code, folder = imported(tmp_path, "transformers")
    assert code == 0
    assert {(row["queries"], row["keys"]) for row in rows(folder, "attention_packed")} == {("1", "500"), ("4", "2000"), ("4", "2004"), ("16", "32000")}
    assert not (folder / "attention_decode.csv").exists()
    assert "form:\n    value: packed" in folder.with_name("transformers.engine.yaml").read_text(encoding="utf-8").replace("\"", "")


def test_a_call_that_attention_of_new_shapes_alone_makes_is_of_the_shape(tmp_path):
    first = held_up(matches_of(tmp_path, "transformers"), [38_000, 40_000, 42_000, 40_000])
    again = matches_of(tmp_path, "transformers")
    plain = host.host_of(again, [], {})
    assert plain.new_attention.seconds == 0
    found = host.host_of([*first, *again], [], {})
    assert found.new_attention.seconds == pytest.approx(0.04, rel=0.01)
    assert found.stall.seconds == 0
    everywhere = host.host_of([*first, *held_up(again, [40_000] * 4)], [], {})  # of steps whose shape came before, too
    assert everywhere.new_attention.seconds == 0
    assert everywhere.stall.seconds == pytest.approx(0.04, rel=0.01)


def test_steps_whose_shape_came_before_are_without_that_call(tmp_path):
    lines = ["prefill,num_decodes,decode_context,prepare_s,compute_s,update_s,traced", ",4,2000,1,1,1,1", ",4,2000,0,0.01,0,0", ",4,2004,0,0.05,0,0",
             "2000+0,4,2000,0,0.05,0,0", "4+1996,0,0,0,0.01,0,0"]  # fmt: skip
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [timing.is_new for timing in host.read_timings(path)] == [False, True, True, False]


def test_what_prompts_of_a_new_number_of_rows_take_longer_is_of_those_that_came_twice(tmp_path):
    header = "prefill,num_decodes,decode_context,step_s"
    twice = [f"{tokens}+0,0,0,{seconds}" for tokens, longer in ((100, 0.008), (200, 0.012), (300, 0.01)) for seconds in (0.05 + longer, 0.05)]
    other = ["100+40,0,0,0.09", "100+40,0,0,0.05"]  # as many rows as the first, with other keys: 40 ms more of attention, none of rows
    path = tmp_path / "steps.csv"
    path.write_text("\n".join([header, *twice, "100+0,0,0,0.05", *other, "400+0,0,0,0.5", ",4,2000,0.01"]) + "\n", encoding="utf-8")
    timings = host.read_timings(path)
    assert [timing.has_new_rows for timing in timings] == [True, False] * 3 + [False] * 3 + [True, True]
    assert host.host_of(matches_of(tmp_path, "transformers"), timings, {}).new_rows.seconds == pytest.approx(0.01)
    assert host.host_of(matches_of(tmp_path, "transformers"), timings[:4], {}).new_rows.seconds == 0  # two prompts are too few
    planned = [*held_up(matches_of(tmp_path, "transformers"), [4_000] * 4), *matches_of(tmp_path, "transformers")]
    assert host.host_of(planned, timings, {}).new_rows.seconds == pytest.approx(0.006, rel=0.05)  # what attention took is not of the rows


def test_the_table_of_your_engine_is_that_of_its_rows():
    import transformers_judged as judged

    root = pathlib.Path(__file__).resolve().parents[2]
    rows = json.loads((root / "docs/validation/transformers_engine.json").read_text(encoding="utf-8"))
    found = judged.table_of([judged.Row(**{key: value for key, value in row.items() if key != "error"}) for row in rows])
    assert found in (root / "docs/your_engine.md").read_text(encoding="utf-8"), "python docs/tools/transformers_judged.py DIR --table prints it"
