"""Executed steps of a service beside the price of the same batch."""

import pytest
from validation_runs import SCENARIO

from orrery.validation import directory, service_steps, serving


def service(requests, steps):
    """Rows of (id, prompt, cached, preemptions, first_scheduled_s) and of (start_s, chunks, prefill tokens, decodes)."""
    return directory.Service(
        requests={
            "id": [row[0] for row in requests],
            "replica": [0.0] * len(requests),
            "prompt_tokens": [row[1] for row in requests],
            "cached_tokens": [row[2] for row in requests],
            "num_preemptions": [row[3] for row in requests],
            "first_scheduled_s": [row[4] for row in requests],
            "first_token_s": [row[4] + 1 for row in requests],
        },
        steps={
            "replica": [0.0] * len(steps),
            "start_s": [row[0] for row in steps],
            "duration_s": [0.5] * len(steps),
            "waited_s": [0.0] * len(steps),
            "num_steps": [1.0] * len(steps),
            "num_prefills": [row[1] for row in steps],
            "prefill_tokens": [row[2] for row in steps],
            "num_decodes": [row[3] for row in steps],
            "decode_context": [row[3] * 100.0 for row in steps],
        },
    )


def test_executed_steps_are_priced_as_the_simulator_took_them(validation):
    validation.scenario.write_text(SCENARIO.replace("serve: false", "serve: true"))
    rows = validation.result(tpot=1.25)["serving"]["steps"]
    classes = {row["class"]: row for row in rows}
    # Four at once, of as many tokens each: they begin and end together, but for the last requests.
    assert set(classes) == {"1 to 8 decodes", "prompts, 1,025 to 2,048 rows, alone", "all"}
    for row in rows:  # each step took 1.25 of what was predicted; of steps taken at once the middle one is priced
        assert row["error"] == pytest.approx(1 / 1.25 - 1, abs=2e-3)
    assert classes["all"]["steps"] == sum(row["steps"] for row in rows) / 2
    assert sum(row["share"] for row in rows) == pytest.approx(2)  # "all" besides
    code, out, err = validation.run("--compare", "out")
    assert code == 0, err
    assert "executed steps" in out
    assert "service-steps-table" in (validation.folder / "out" / "validation.html").read_text()


def test_prompts_are_taken_in_order_and_the_last_of_a_step_may_be_cut():
    found = service(
        # The second was scheduled first, beside 20 cached tokens of it.
        [(0, 100, 0, 0, 0.5), (1, 300, 20, 0, 0.0), (2, 70, 0, 0, 2.0)],
        [(0.0, 1, 200, 0), (0.5, 2, 150, 0), (1.0, 0, 0, 1), (2.0, 2, 100, 2)],
    )
    chunks = [step.prefill for step in service_steps.executed_steps(found)]
    assert chunks == [
        [(200, 20, False)],
        [(80, 220, True), (70, 0, False)],
        [],
        [(30, 70, True), (70, 0, True)],
    ]


def test_steps_that_do_not_follow_from_the_requests_are_left_out():
    requests = [(0, 100, 0, 0, 0.0), (1, 100, 0, 0, 1.0)]
    other = service(requests, [(0.0, 1, 100, 0), (1.0, 1, 120, 1), (2.0, 0, 0, 2)])
    assert [step.start_s for step in service_steps.executed_steps(other)] == [0.0]
    preempted = service([(0, 100, 0, 1, 0.0)], [(0.0, 1, 100, 0)])
    assert not list(service_steps.executed_steps(preempted))


def test_classes_are_of_decodes_and_of_rows_with_prompts():
    def named(rows, decodes):
        prefill = [(rows - decodes, 0, True)] if rows > decodes else []
        step = service_steps.ExecutedStep(0, 0.0, 1.0, 1, prefill, decodes, 0)
        return service_steps.class_of(step)[1]

    assert [named(n, n) for n in (1, 8, 9, 128, 129)] == [
        "1 to 8 decodes", "1 to 8 decodes", "9 to 32 decodes", "65 to 128 decodes", "more than 128 decodes",
    ]  # fmt: skip
    assert named(512, 0) == "prompts, 1 to 512 rows, alone"
    assert named(513, 1) == "prompts, 513 to 1,024 rows, beside decodes"


def test_steps_of_the_warm_up_are_in_no_figure():
    # A prompt and two slow decodes of the warm-up, then a prompt and two decodes of 0.5 s of the one that is measured.
    found = service([(0, 100, 0, 0, 0.0), (1, 100, 0, 0, 20.0)], [(0.0, 1, 100, 0), (0.5, 0, 0, 9), (8.0, 0, 0, 9), (20.0, 1, 100, 0), (20.5, 0, 0, 1), (21.0, 0, 0, 1)])  # fmt: skip
    found.requests.update({"arrival_s": [0.0, 20.0], "finish_s": [16.0, 21.5], "output_tokens": [3.0, 3.0]})
    found.requests.update({"ttft_s": [1.0, 0.5], "tpot_s": [8.0, 0.5], "e2e_s": [16.0, 1.5]})
    found.steps["duration_s"][1:3] = [7.5, 8.0]
    figures = serving._service_figures(found, {1})
    assert figures["num_steps"] == 3
    assert figures["mean_step_s"] == pytest.approx(0.5)
    assert figures["mean_decodes"] == pytest.approx(2 / 3)
    assert "token_balance" not in figures  # of one rank
    found.steps["token_balance"] = [0.5, 0.5, 0.5, 1.0, 0.75, 0.5]
    assert serving._service_figures(found, {1})["token_balance"] == pytest.approx(0.75)
    assert figures["itl_s"]["p99"] == figures["itl_s"]["mean"] == pytest.approx(figures["tpot_s"]["p99"])


def test_steps_of_both_sides_are_priced_where_prefill_and_decode_are_apart(validation):
    apart = SCENARIO.replace("serve: false", "serve: true").replace("placement: {tp: 2}", "disaggregation: {prefill: {replicas: 1}, decode: {replicas: 1}}")
    validation.scenario.write_text(apart)
    rows = validation.result(tpot=1.25)["serving"]["steps"]
    decodes = next(row for row in rows if row["class"] == "1 to 8 decodes")
    prompts = [row for row in rows if row["class"].endswith("alone")]
    assert prompts
    assert decodes["steps"] > sum(row["steps"] for row in prompts)
