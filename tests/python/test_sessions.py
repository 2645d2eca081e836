"""Sessions and autoscaling, from a scenario to its summary and report."""

import json

import orrery
import pytest
from orrery import report

SESSIONS = {"num_sessions": 40, "turns": {"min": 1, "max": 6}, "first_prompt": {"min": 100, "max": 900}, "user_tokens": {"min": 10, "max": 300},
            "output_tokens": {"min": 5, "max": 120}, "think_time": {"mean": "3 s", "cv": 1}, "shared_system_prompt": 500}  # fmt: skip
SCALING = {"max_replicas": 4, "start_up": "5 s", "interval": "2 s", "scale_down_delay": "10 s", "target": {"metric": "in_flight_requests", "value": 2}}


def simulated(**changes):
    parts = {"model": "llama-3.1-8b", "machine": "hgx-h100", "provider": "vllm-0.24.0", "placement": {"replicas": 2},
             "workload": {"sessions": {"sessions_per_s": 2, **SESSIONS}}, "engine": {"enable_prefix_caching": True}}  # fmt: skip
    return orrery.simulate(orrery.Scenario(**(parts | changes)))


def test_turns_follow_their_answers_and_find_what_was_said():
    result = simulated(router="session_affinity")
    requests = result.requests.to_pandas()
    turns = requests.groupby("session")
    assert len(turns) == 40 == result.summary["sessions"]["count"]
    before = turns["finish_s"].shift()
    later = requests["turn"] > 0
    assert (requests["arrival_s"] >= before)[later].all()
    assert (turns["replica"].nunique() == 1).all()
    # All but the last block, in units of 64 tokens: an answer's last token is computed with the next turn.
    whole = turns["prompt_tokens"].shift() + turns["output_tokens"].shift()
    assert (requests["cached_tokens"] == (whole - 1) // 64 * 64)[later].all()
    duration = (turns["finish_s"].max() - turns["arrival_s"].min()).mean()
    assert result.summary["sessions"]["duration_s"]["mean"] == pytest.approx(duration)


def test_users_have_one_session_after_the_other():
    requests = simulated(workload={"sessions": {"concurrency": 3, **SESSIONS}}).requests.to_pandas()
    spans = requests.groupby("session").agg(begin=("arrival_s", "min"), end=("finish_s", "max"))
    for at in spans["begin"]:
        assert ((spans["begin"] <= at) & (at < spans["end"])).sum() <= 3


def test_a_resolved_scenario_says_both_and_repeats_the_run(tmp_path):
    result = simulated(autoscaling=SCALING, placement={"replicas": 1}, workload={"sessions": {"sessions_per_s": 2, **SESSIONS, "max_context": 4000}})
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(result.scenario.to_yaml(), encoding="utf-8")
    again = orrery.load(resolved)
    assert again.to_yaml() == result.scenario.to_yaml()
    assert orrery.simulate(again).requests.to_pandas().equals(result.requests.to_pandas())


def test_replicas_come_and_go_and_are_paid_for():
    result = simulated(autoscaling=SCALING, placement={"replicas": 1})
    found = result.summary["autoscaling"]
    counts = found["counts"]
    assert counts[0] == [0, 1, 0, 0]
    assert found["starts"] > 0 and found["stops"] > 0
    ends = [row[0] for row in counts[1:]] + [found["time_s"]]
    gpu_seconds = sum(sum(row[1:]) * (end - row[0]) for row, end in zip(counts, ends))
    assert found["gpu_hours"] * 3600 == pytest.approx(gpu_seconds)
    assert found["mean_replicas"] * found["time_s"] == pytest.approx(gpu_seconds)
    # Who is ready at 0 is alone until the first that was started is ready.
    ready = next(row[0] for row in counts if row[1] > 1)
    requests = result.requests.to_pandas()
    assert (requests["replica"][requests["arrival_s"] < ready] == 0).all()
    assert requests["replica"].nunique() > 1


def test_as_many_at_least_as_at_most_are_the_fixed_deployment():
    fixed = simulated(placement={"replicas": 3})
    scaled = simulated(placement={"replicas": 3}, autoscaling=SCALING | {"min_replicas": 3, "max_replicas": 3})
    assert fixed.requests.to_pandas().equals(scaled.requests.to_pandas())
    assert fixed.summary["output_tokens_per_s_per_gpu"] == scaled.summary["output_tokens_per_s_per_gpu"]
    assert fixed.summary["energy"] == scaled.summary["energy"]


def test_a_run_says_and_shows_sessions_and_replicas(tmp_path, capsys):
    from orrery import cli

    result = simulated(autoscaling=SCALING, placement={"replicas": 1})
    file = tmp_path / "both.yaml"
    file.write_text(result.scenario.to_yaml(), encoding="utf-8")
    assert cli.main(["run", str(file), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "40 of" in said and "TTFT of turns" in said and "GPU-hours" in said
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for text in ("Prompt tokens of later turns from the prefix cache", "GPU-hours of all replicas", "with those that start or drain"):
        assert text in page
    assert cli.main(["emit", str(tmp_path / "out"), "--engine", "vllm"]) == 2
    assert "found autoscaling" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    summary["autoscaling"]["counts"] = [[0, 1]]
    (tmp_path / "out" / "SHA256SUMS").unlink()
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match="autoscaling.counts"):
        report.render(tmp_path / "out")


def test_a_trace_of_sessions_is_read(tmp_path):
    rows = ["arrival_s,prompt_tokens,output_tokens,session_id,think_time_s", "0,300,20,a,", "0.5,200,10,b,", "1,400,20,a,2.5", "2,500,30,a,4"]
    (tmp_path / "trace.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    requests = simulated(placement={"replicas": 1}, workload={"trace": str(tmp_path / "trace.csv")}).requests.to_pandas()
    assert requests["session"].tolist() == [0, 0, 0, 1]
    assert requests["prompt_tokens"].tolist() == [300, 400, 500, 200]
    waits = (requests["arrival_s"] - requests["finish_s"].shift())[1:3]
    assert waits.tolist() == pytest.approx([2.5, 4])
    assert requests["cached_tokens"].tolist() == [0, 319 // 64 * 64, 419 // 64 * 64, 0]
    columns = {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "session": "session_id"}
    at_times = simulated(workload={"trace": str(tmp_path / "trace.csv"), "columns": columns}).requests.to_pandas()
    assert at_times["arrival_s"].tolist() == pytest.approx([0, 1, 2, 0.5])
