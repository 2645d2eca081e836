"""Rows whose clients wait for one another's answers although their server has room for all of them."""

import pytest
import scorecard_rows
from orrery.scorecard import cases, seats
from orrery.simulation import project_root

TPOT, PROMPT = 0.01, {"1000": 0.1, "2000": 0.2}  # s; of a token, and of a prompt of so many tokens
OUTPUTS = (101, 201, 401)  # so that decoding takes 1, 2 and 4 s
FAST = {"case_id": "fast", "load_value": "64", "isl": "1000", "osl": "101"}  # the server can send eight times as many tokens


def read(tmp_path, *, wait=0.0, errors=(1.0, 1.0, 1.0), prompts=tuple(PROMPT), fast=FAST, tpot=TPOT, **cells):
    """Llama-3.1-8B on one H200 and 8 clients: each waits `wait` of the decode time; TTFT is `errors` times that by output."""
    base = {"load_value": "8"} | cells
    found = [({"case_id": f"{prompt} {output}", "isl": prompt, "osl": str(output)} | base, error * (PROMPT[prompt] + wait * (output - 1) * tpot), tpot)
             for prompt in prompts for output, error in zip(OUTPUTS, errors)]  # fmt: skip
    found += [(fast, 0.2, TPOT)] if fast else []
    rows = [scorecard_rows.row(id=f"MADE-{i}", metric=metric, value=str(1e3 * value), **case)
            for i, (case, ttft, of_token) in enumerate(found) for metric, value in (("ttft", ttft), ("tpot", of_token))]  # fmt: skip
    return cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows))


def contradictory(found):
    return {case.case_id for case in found if case.contradiction}


@pytest.mark.parametrize("served", [4, 7])
def test_clients_without_a_seat_are_found_from_the_growth_of_ttft(tmp_path, served):
    # Of 8 clients 8 - served wait: (8 - served) / served of what one with a seat takes.
    (found,) = seats.missing(read(tmp_path, wait=(8 - served) / served)).values()
    assert found.clients == 8
    assert found.seats == pytest.approx(8 - served)
    assert found.error == pytest.approx(0, abs=1e-6)


def test_a_run_in_which_a_client_always_waits_for_another_contradicts_its_own_seats(tmp_path):
    found = read(tmp_path, wait=1 / 7)
    assert contradictory(found) == {f"{prompt} {output}" for prompt in PROMPT for output in OUTPUTS}  # all but "fast"
    assert "as if 1.00 (+- 0.00) of 8 clients had no seat" in found[0].contradiction


@pytest.mark.parametrize("wait", [0, -0.05, 0.4 / 7.6])
def test_ttft_that_does_not_grow_or_by_less_than_half_a_seat_is_none(tmp_path, wait):
    assert contradictory(read(tmp_path, wait=wait)) == set()


def test_growth_within_what_rows_differ_by_is_none(tmp_path):
    # By half of what one seat makes, with TTFT of the middle output a fifth off.
    found = read(tmp_path, wait=0.6 / 7.4, errors=(1.0, 1.6, 1.0))
    (judged,) = seats.missing(found).values()
    assert seats.LEAST_MISSING < judged.seats < seats.LEAST_ERRORS * judged.error
    assert contradictory(found) == set()


@pytest.mark.parametrize("cells", [
    {"max_batch": "7"},  # a client more than seats, as the row says
    {"weights_dtype": "unknown"},  # nobody knows what memory is left
    {"load_kind": "poisson"},
])  # fmt: skip
def test_runs_whose_clients_may_have_to_wait_are_not_judged(tmp_path, cells):
    found = read(tmp_path, wait=1 / 7, fast=FAST | cells, **cells)
    assert seats.missing(found) == {}
    assert contradictory(found) == set()


@pytest.mark.parametrize("gpu, num_judged", [("h200", 1), ("h100", 0)])
def test_clients_whose_caches_may_not_fit_are_not_judged(tmp_path, gpu, num_judged):
    # 128 caches of 2,401 tokens of 131,072 bytes are 40 GB: more than half of the 70 GB that weights of 16 GB leave of 80 GiB,
    # less than half of the 135 GB of 141 GiB.
    found = read(tmp_path, wait=1 / 127, tpot=0.1, load_value="128", gpu_key=gpu, fast=FAST | {"gpu_key": gpu})
    assert len(seats.missing(found)) == num_judged


def test_a_server_that_shows_no_higher_rate_may_be_behind_with_its_tokens(tmp_path):
    assert seats.missing(read(tmp_path, wait=1 / 7, fast=None)) == {}


def test_one_shape_alone_is_not_judged(tmp_path):
    assert seats.missing(read(tmp_path, wait=1 / 7, prompts=("1000",))) == {}


def test_of_the_shipped_runs_that_can_be_judged_one_contradicts_its_seats():
    shipped = cases.read_cases(project_root() / "data" / "serving" / "published_serving.csv")
    found = seats.missing(shipped)
    of_run = {name: judged for name, judged in found.items() if judged.is_contradiction}
    assert {name[1:] for name in of_run} == {("trtllm", "1.0.0rc3", "Llama-3.1-8B-Instruct", "bf16", "h100", c) for c in ("8", "16", "32")}
    assert all(0.75 < judged.seats < 1 for judged in of_run.values())  # one client
    assert sum("no seat" in case.contradiction for case in shipped) == 108
    # Where others are judged at as many clients, none has to wait.
    others = [judged for name, judged in found.items() if judged.clients <= 32 and name not in of_run]
    assert len(others) > 10
    assert all(abs(judged.seats) < 0.1 for judged in others)
