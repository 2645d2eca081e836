"""docs/validation: rows of directories that were predicted and executed, and the pages made of them."""

from pathlib import Path

import pytest

from orrery.validation import held_out, order, pages
from orrery.validation.results import FIELDS, error, merge, quantile, rows_alone, rows_of, times_alone

SPANS = "op,copy,rank,stream,kind,basis,start_s,end_s\n"
ROPES = "rope,0,0,0,kernel,measured,0.0008,0.0008\nrope,0,1,0,kernel,measured,0.0001,0.0001\n"
PLAN = """group g0 0
tensor t0 x activation bf16 [tokens=4,hidden=8] g0
op o0 "a b" kernel gemm bf16 m=4:tokens n=6:qkv k=8:hidden g0 s0 reads t0 writes t0
op o1 rope kernel rope bf16 tokens=4:tokens heads=2 head_dim=4 g0 s0 reads t0 writes t0
op o2 sum comm all_reduce bf16 64B g0 s0 reads t0 writes t0
"""


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A decode step of 1.0 ms + 0.1 ms of the host, run three times, its kernels traced, and a service of three requests."""
    # Preempted, so that steps do not follow from requests: their scenario is none that could price them.
    requests = (
        "replica,cached_tokens,num_preemptions,first_scheduled_s,first_token_s,"
        "id,prompt_tokens,output_tokens,arrival_s,finish_s,ttft_s,tpot_s,e2e_s\n"
    )
    serve_steps = (
        "replica,num_prefills,decode_context,start_s,duration_s,num_steps,prefill_tokens,num_decodes\n0,3,9,0,1,3,15,3\n"
    )
    plan = PLAN.replace("g0 0", "g0 0-1")
    return write(tmp_path / "small", {
        "scenario.yaml": "question: is it so?\nmodel: {config: c, weights: bf16, activations: bf16, kv_cache: bf16}\nprovider: p\nengine: {profile: e}\nplacement: {tp: 2}\n",
        "deployment.txt": "name llama-3.1-8b\nmesh dp 1\nmesh tp 2\nmesh pp 1\nnum_kv_blocks 9\nseed 1\nconfig vocab_size int 7\n",
        "workload.csv": "arrival_s,prompt_tokens,output_tokens\n0,5,9\n1,5,3\n4.8,5,1\n",
        "serve.txt": "open\nwarmup 1\n",
        "steps/d_graph.step": "mode graph\ndecodes 1 512\n",
        "steps/d_graph.plan": plan,
        "steps/x_graph.step": "mode graph\ndecodes 2 512\n",
        "steps/x_graph.plan": plan,
        "predicted/calibration.csv": "kernel,provider,device,revision,date,driver\ngemm,p,d,abc,,\nrope,p,d,abc,,\n",
        "predicted/steps.csv": "name,mode,duration_s,low_s,high_s,host_s\nd_graph,graph,0.001,0.0009,0.0011,0.0001\nx_graph,graph,1,1,1,0\n",
        "predicted/d_graph.spans.csv": SPANS + "a b,0,0,0,kernel,measured,0,0.0009\nrope,0,1,0,kernel,interpolated,0,0.0003\nrope,0,0,0,kernel,interpolated,0.0009,0.0009\n",
        "predicted/x_graph.spans.csv": SPANS + ROPES,
        "predicted/memory.csv": "rank,term,bytes\n0,context,0\n0,total,100\n1,context,0\n1,total,100\n",
        "predicted/summary.json": '{"basis": {"measured": 0.25, "interpolated": 0.75, "roofline": 0.0}}',
        "predicted/requests.csv": requests + "0,0,1,0,0.2,0,5,9,0,1,0.2,0.1,1\n0,0,1,1,1.1,1,5,3,1,1.12,0.1,0.01,0.12\n0,0,1,4.8,5.1,2,5,1,4.8,5.1,0.3,,0.3\n",
        "predicted/serve_steps.csv": serve_steps,
        "executed/environment.txt": "gpu NVIDIA H200\nnum_gpus 2\ndate 2026-01-02\n",
        "executed/status.txt": "complete\n",
        "executed/steps.csv": "name,mode,iteration,duration_s,device_s\nd_graph,graph,0,0.002,0.0008\nd_graph,graph,1,0.001,0.0008\nd_graph,graph,2,0.001,0.0008\n",
        "executed/d_graph.spans.csv": SPANS + "a b,0,0,0,kernel,measured,0,0.0006\na b,0,1,0,kernel,measured,0,0.0001\nsum,0,0,0,comm,measured,0.0005,0.0008\n" + ROPES,
        "executed/memory.csv": "rank,term,bytes\n0,context,7\n0,total,80\n1,context,7\n1,total,100\n",
        "executed/requests.csv": requests + "0,0,1,0,0.2,0,5,9,0,1,0.2,0.1,1\n0,0,1,1,1.2,1,5,3,1,1.24,0.2,0.02,0.24\n0,0,1,4.8,5,2,5,1,4.8,5,0.2,,0.2\n",
        "executed/serve_steps.csv": serve_steps,
    })  # fmt: skip


def figures(directory: Path) -> dict[str, dict]:
    return {row["metric"]: row for row in rows_of(directory)}


def test_rows_say_what_was_predicted_and_measured_and_from_what(directory: Path) -> None:
    row = figures(directory)["step_time/d"]
    assert tuple(row) == FIELDS
    assert (row["plan"], row["model"], row["gpus"], row["mode"], row["unit"]) == ("small", "llama-3.1-8b", 2, "graph", "s")
    assert row["predicted"] == pytest.approx(0.0011)  # the host's own time is part of a step
    assert row["measured"] == 0.001  # the median of three
    assert row["basis"] == "interpolated 0.25, measured 0.75"
    assert (row["calibration_revision"], row["date"]) == ("abc", "2026-01-02")
    assert error(row) == pytest.approx(0.1)
    device = figures(directory)["device_time/d"]
    assert (device["predicted"], device["measured"]) == (0.001, 0.0008)


def test_steps_that_were_not_executed_have_no_row(directory: Path) -> None:
    assert "step_time/x" not in figures(directory)


def test_busy_time_is_that_of_the_busiest_rank_counted_once_where_launches_overlap(directory: Path) -> None:
    row = figures(directory)["busy_time/d"]
    assert (row["predicted"], row["measured"]) == (0.0009, pytest.approx(0.0008))  # 0 to 0.6 and 0.5 to 0.8 ms on rank 0


def test_memory_has_the_terms_that_both_sides_know(directory: Path) -> None:
    assert {name for name in figures(directory) if name.startswith("memory/")} == {
        f"memory/{term}/rank{rank}" for term in ("context", "total") for rank in (0, 1)
    }


def test_latencies_leave_warm_up_and_single_tokens_out(directory: Path) -> None:
    found = figures(directory)
    assert found["ttft_mean"]["predicted"] == pytest.approx(0.2)  # (0.1 + 0.3) / 2
    assert found["ttft_mean"]["measured"] == pytest.approx(0.2)
    assert found["tpot_mean"]["measured"] == pytest.approx(0.02)  # of the one request with several tokens
    assert found["output_tokens_per_s"]["measured"] == pytest.approx(4 / 4)  # from 1 s to 5 s
    assert found["ttft_p99"]["basis"] == "interpolated 0.75, measured 0.25"


def test_a_plan_measured_again_replaces_all_its_rows(directory: Path) -> None:
    rows = rows_of(directory)
    other = [dict(row, plan="other") for row in rows]
    merged = merge(rows + other, rows[:1])
    assert len([row for row in merged if row["plan"] == "small"]) == 1
    assert len([row for row in merged if row["plan"] == "other"]) == len(rows)


def test_quantiles_are_linear_between_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.95) == pytest.approx(0.95)


def step(plan: str, predicted: float, measured: float, gpus: int = 1, metric: str = "step_time/decode_1_at_512", mode: str = "graph") -> dict:
    return {"plan": plan, "model": "m", "gpus": gpus, "mode": mode, "metric": metric, "unit": "s", "predicted": predicted, "measured": measured,
            "basis": "", "calibration_revision": "abc", "date": "2026-01-02"}  # fmt: skip


def test_order_counts_pairs_that_differ_by_more_than_3_percent() -> None:
    rows = [step("a", 1.0, 1.0), step("b", 0.9, 1.02), step("c", 0.95, 1.5)]
    # a and b are within 3 %; b is faster than c, as predicted; a is faster than c, which was predicted otherwise.
    assert order.steps(rows, per_gpu=False) == (1, 2)
    # Two GPUs at 0.6 of the time serve less a GPU, predicted and measured.
    assert order.steps([step("a", 1.0, 1.0), step("d", 0.7, 0.6, gpus=2)], per_gpu=True) == (1, 1)


def test_order_of_services_is_judged_within_a_trace_and_within_a_load() -> None:
    def service(plan: str, predicted: float, measured: float, gpus: int = 1) -> dict:
        return step(plan, predicted, measured, gpus, metric="output_tokens_per_s", mode="serve")

    rows = [service("serve_8b_azure_30", 1.0, 1.0), service("serve_8b_azure_70", 2.0, 2.0), service("serve_8b_tp2_azure_70", 1.9, 2.2, gpus=2),
            service("serve_8b_closed_8", 9.0, 9.0)]  # fmt: skip
    # 30 is slower than both of 70, as predicted; of those two the second was predicted to be slower.
    assert order.services(rows, "output_tokens_per_s") == (2, 3)
    assert order.services(rows, "output_tokens_per_s", same_load=True) == (0, 1)
    # A GPU of two gives 1.1, more than the first service's: predicted were 0.95.
    assert order.services(rows, "output_tokens_per_s", per_gpu=True) == (2, 3)
    assert order.services(rows, "output_tokens_per_s", per_gpu=True, same_load=True) == (1, 1)
    assert order.services(rows, "tpot_mean") == (0, 0)


def test_kernels_alone_are_summed_where_all_of_a_step_are_known(directory: Path, tmp_path: Path) -> None:
    plan = "\n".join(PLAN.splitlines()[:-1]) + "\nrepeat o0-o1 x3\n"  # without the collective
    (directory / "executed/d_graph.spans.csv").unlink()
    write(directory, {"steps/d_graph.plan": plan, "predicted/d_graph.spans.csv": SPANS + "rope,2,0,0,kernel,measured,0,0.001\n"})
    tables = write(tmp_path / "tables", {"gemm.csv": "dtype,m,n,k,time_us,l2,mode\nbf16,4,6,8,1,warm,graph\nbf16,4,6,8,100,cold,graph\n"})
    assert rows_alone(directory, times_alone(tables)) == []  # rope is not known
    write(tables, {"rope.csv": "dtype,tokens,heads,head_dim,time_us,l2,mode\nbf16,4,2,4,10,cold,graph\n"})
    (row,) = rows_alone(directory, times_alone(tables))
    assert (row["metric"], row["measured"]) == ("kernels_alone/d", 0.001)
    assert row["predicted"] == pytest.approx(3 * (100e-6 + 10e-6))


def test_overhead_is_a_step_against_its_kernels() -> None:
    rows = [step("llama_8b", 1.0, 1.02, metric="kernels_alone/decode_1_at_512"), step("other", 1.0, 1.5, metric="kernels_alone/decode_1_at_512")]
    assert pages.overheads_of(rows) == {"decode_1_at_512": pytest.approx(0.02)}


@pytest.mark.parametrize(("predicted", "verdict"), [(1.02, "reached"), (1.05, "missed")])
def test_an_aim_is_judged_by_its_limit(predicted: float, verdict: str) -> None:
    page = pages.readme([step("a", predicted, 1.0)], [])
    line = next(line for line in page.splitlines() if line.startswith("| step time, all plans"))
    assert line.endswith(f"| {verdict} |")
    assert "| not measured |" in page  # serving, which no row is of


def test_tables_hold_no_call_of_a_judged_plan(tmp_path: Path) -> None:
    judged = write(tmp_path / "judged", {"steps/a.plan": PLAN})
    tables = write(tmp_path / "tables", {
        "gemm.csv": "dtype,m,n,k,time_us,l2\nbf16,4,6,8,1,cold\nbf16,4,6,8,2,warm\nfp8,4,6,8,3,cold\nbf16,5,6,8,4,cold\n",
        "meta.yaml": "provider: own\n",
    })  # fmt: skip
    counts = held_out.held_out(tables, held_out.judged_calls([judged]), tmp_path / "out")
    assert counts == {"gemm": (2, 2)}
    assert (tmp_path / "out/gemm.csv").read_text(encoding="utf-8") == "dtype,m,n,k,time_us,l2\nfp8,4,6,8,3,cold\nbf16,5,6,8,4,cold\n"
    assert (tmp_path / "out/meta.yaml").exists()


def test_a_table_of_judged_calls_alone_and_no_plans_are_errors(tmp_path: Path) -> None:
    tables = write(tmp_path / "tables", {"rope.csv": "dtype,tokens,heads,head_dim,time_us\nbf16,4,2,4,1\n"})
    with pytest.raises(ValueError, match="every row is of a judged step"):
        held_out.held_out(tables, held_out.kernel_calls(PLAN), tmp_path / "out")
    with pytest.raises(ValueError, match="found no plans"):
        held_out.judged_calls([tmp_path])
