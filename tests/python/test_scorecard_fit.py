"""Choosing the numbers of engine profiles: the solver, what is left out, and that what is shipped is what was found."""

import csv
import dataclasses
import pathlib

import numpy as np
import pandas
import pytest
from orrery.scorecard import calibration, choice, intervals, left_out, lengths, parameters, profiles, record, rules, solve
from orrery.scorecard.cases import read_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINES = ROOT / "scenarios" / "engines"
NUM = len(parameters.PARAMETERS)


def rows_of(truth, *, rows=200, noise=0.0, seed=1):
    """Linear rows whose residuals vanish at `truth`, a step from the priors in deviations."""
    draw = np.random.default_rng(seed)
    jacobian = draw.normal(size=(rows, len(truth)))
    return solve.Rows(-jacobian @ truth + noise * draw.normal(size=rows), jacobian, np.full(rows, 1.0))


def unbounded(count):
    return {"low": np.full(count, -9.0), "high": np.full(count, 9.0)}


def test_exact_rows_give_back_what_made_them():
    truth = np.array([0.5, -1.0, 2.0])
    found = solve.solve(rows_of(truth), centre=np.zeros(3), strength=np.full(3, 1e-9), **unbounded(3))
    assert found == pytest.approx(truth, abs=1e-6)


def test_a_few_rows_of_something_else_do_not_move_the_others():
    truth = np.array([0.5, -1.0, 2.0])
    rows = rows_of(truth, noise=0.05)
    spoiled = solve.Rows(np.concatenate([rows.residuals, np.full(20, 30.0)]), np.vstack([rows.jacobian, np.ones((20, 3))]), np.ones(220))
    found = solve.solve(spoiled, centre=np.zeros(3), strength=np.full(3, 1e-6), **unbounded(3))
    # Least squares would be dragged by about 20 x 30 / 200 = 3.
    assert found == pytest.approx(truth, abs=0.05)


def test_without_rows_the_numbers_are_the_priors():
    none = solve.Rows(np.empty(0), np.empty((0, 3)), np.empty(0))
    centre = np.array([1.0, 0.0, -2.0])
    assert solve.solve(none, centre=centre, strength=np.ones(3), **unbounded(3)) == pytest.approx(centre)


def test_priors_draw_by_their_strength():
    # One row r = x - 2 of weight 1 and a prior at 0 of strength s: the slope of log(1 + r^2) + s x^2 is zero there.
    row = solve.Rows(np.array([-2.0]), np.array([[1.0]]), np.ones(1))
    (x,) = solve.solve(row, centre=np.zeros(1), strength=np.array([0.3]), **unbounded(1))
    r = x - 2
    assert 2 * r / (1 + r**2) + 2 * 0.3 * x == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_bounded_numbers_meet_the_conditions_of_a_minimum(seed):
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(6, 6))
    matrix, target = root @ root.T + 0.1 * np.eye(6), 3 * draw.normal(size=6)
    low, high = np.full(6, -0.5), np.full(6, 0.5)
    low[0] = high[0] = 0.2  # held
    x = solve._bounded(matrix, target, np.zeros(6), low, high)
    slope = matrix @ x - target
    assert x[0] == 0.2
    for i in range(1, 6):
        assert low[i] <= x[i] <= high[i]
        if x[i] > low[i] + 1e-9:
            assert slope[i] < 1e-6
        if x[i] < high[i] - 1e-9:
            assert slope[i] > -1e-6


def made_up(truth, *, cells=12, per_cell=20, noise=0.3, spoiled="", seed=3):
    """A problem of one profile whose residuals vanish at `truth` but for noise; rows of the family `spoiled` are far off."""
    draw = np.random.default_rng(seed)
    count = cells * per_cell
    cell = np.repeat(np.arange(cells), per_cell)
    groups = pandas.DataFrame({
        "family": [f"family {c % 4}" for c in cell], "version": [f"version {c % 3}" for c in cell], "model": [f"model {c % 5}" for c in cell],
        "gpu": ["h100" if i % 2 else "h200" for i in range(count)], "cell": [f"cell {c}" for c in cell],
        "kind_of_metric": "first token", "case_id": [str(i) for i in range(count)], "metric": "TTFT",
    })  # fmt: skip
    jacobian = draw.normal(size=(count, NUM))
    residuals = -jacobian @ truth + noise * draw.normal(size=count)
    residuals[(groups["family"] == spoiled).to_numpy()] += 40
    weights = choice.weights(groups["cell"], groups["kind_of_metric"])
    return choice.Problem(solve.Rows(residuals, jacobian, weights), np.full(count, "engine"), groups)


def step_to(values):
    return np.array([(values[p.path] - p.prior) / p.deviation for p in parameters.PARAMETERS])


TRUTH = np.array([0.8, 1.5, -0.5, 1.0, 0.5, 0.4, 0.0, 0.0, -0.6, 0.0])  # none where nothing is fitted


def test_numbers_that_made_the_published_values_are_found_again():
    found = choice.chosen(made_up(TRUTH), ["engine"], choice.Trust(common=0.01, own=0.01))["engine"]
    assert found == pytest.approx(TRUTH, abs=0.15)


def test_a_parameter_that_is_not_fitted_stays_where_it_is_without_measurements_whatever_rows_say():
    not_fitted = [i for i, parameter in enumerate(parameters.PARAMETERS) if not parameter.is_fitted]
    problem = made_up(np.where(np.isin(np.arange(NUM), not_fitted), 3.0, TRUTH))
    trust = choice.trust(problem, ["engine"])
    assert len(not_fitted) == 3
    assert trust.held.issuperset(not_fitted)
    assert not choice.chosen(problem, ["engine"], trust)["engine"][not_fitted].any()


def test_weights_of_a_cell_and_kind_add_up_to_one_however_many_cases_it_has():
    cells = ["large"] * 177 + ["small"] * 10 + ["few"] * 2
    found = pandas.Series(choice.weights(cells, ["per token"] * len(cells))).groupby(cells).sum()
    assert found["large"] == pytest.approx(1)
    assert found["small"] == pytest.approx(1)
    assert found["few"] == pytest.approx(2 / choice.FULL_CELL)


@pytest.mark.parametrize("kind", left_out.KINDS)
def test_a_group_that_is_left_out_does_not_move_the_numbers_that_it_is_judged_with(kind):
    clean = made_up(TRUTH)
    group = clean.groups[kind][0]
    of_group = (clean.groups[kind] == group).to_numpy()
    residuals = np.where(of_group, clean.rows.residuals + 7, clean.rows.residuals)
    poisoned = choice.Problem(solve.Rows(residuals, clean.rows.jacobian, clean.rows.weights), clean.profile, clean.groups)
    without = left_out.numbers_without(clean, ["engine"], kind, group)
    assert left_out.numbers_without(poisoned, ["engine"], kind, group) == without
    # With the group the poison does move them.
    trust = choice.Trust()
    assert choice.numbers(choice.chosen(poisoned, ["engine"], trust)) != choice.numbers(choice.chosen(clean, ["engine"], trust))


def test_engines_of_an_earlier_generation_and_of_today_do_not_move_each_other():
    old, new = choice.EARLIER[0], "engine"
    of_today, of_old = made_up(TRUTH), made_up(-0.5 * TRUTH, seed=5)
    both = choice.Problem(
        solve.Rows(*(np.concatenate([getattr(p.rows, field.name) for p in (of_today, of_old)]) for field in dataclasses.fields(solve.Rows))),
        np.concatenate([of_today.profile, np.full(len(of_old.profile), old)]),
        pandas.concat([of_today.groups, of_old.groups], ignore_index=True),
    )  # fmt: skip
    trust = choice.Trust()
    found, alone = choice.chosen(both, [new, old], trust), choice.chosen(of_today, [new], trust)
    assert found[new] == pytest.approx(alone[new])
    assert np.abs(found[old] - found[new]).max() > 0.3


def test_a_parameter_that_no_row_depends_on_stays_at_its_prior():
    problem = made_up(TRUTH)
    problem.rows.jacobian[:, 3] = 0
    trust = choice.trust(problem, ["engine"])
    assert choice.chosen(problem, ["engine"], trust)["engine"][3] == pytest.approx(0, abs=1e-9)


@pytest.fixture
def engines(tmp_path):
    profiles.copy_with(ENGINES, tmp_path / "engines", {})
    return tmp_path / "engines"


@pytest.fixture(scope="module")
def loops():
    """(clients, prompt, output, seconds of a request) of every published closed loop that counts."""
    found = []
    for case in read_cases(ROOT / "data" / "serving" / "published_serving.csv"):
        seconds = {m.metric: m.value * {"s": 1.0, "ms": 1e-3}.get(m.unit, float("nan")) for m in case.measurements}
        prompt, output = lengths.read(case.fields["isl"]), lengths.read(case.fields["osl"])
        is_loop = case.fields["load_kind"] == "closed_loop" and case.fields["load_value"].isdecimal()
        counts = not (case.problem or case.contradiction or rules.not_simulated(case.fields))
        if is_loop and counts and prompt and output and {"ttft", "tpot"} <= seconds.keys():
            whole = seconds["ttft"] + (output.mean - 1) * seconds["tpot"]
            found.append((int(case.fields["load_value"]), prompt.mean, output.mean, whole))
    assert len(found) > 750
    return found


def highest(path):
    return next(parameter.high for parameter in parameters.PARAMETERS if parameter.path == path)


def test_no_published_row_is_faster_than_the_dearest_token_of_one_server(loops):
    # C clients, each with its N tokens every TTFT + (N - 1) TPOT, pass a server that takes one token after another.
    per_token = min(1e6 * whole / (clients * output) for clients, _, output, whole in loops)
    assert highest("front_end.per_output_token") < per_token < 1.1 * highest("front_end.per_output_token")


def test_no_published_row_is_faster_than_what_one_server_takes_for_a_request_and_the_fastest_not_twice_as_slow(loops):
    # The same C clients' requests pass a server that takes in one request after another. What is not fitted has one bound.
    shares = [(highest("front_end.per_request") + 1e-3 * highest("front_end.per_prompt_token") * prompt) / (1e3 * whole / clients)
              for clients, prompt, _, whole in loops]  # fmt: skip
    assert 0.5 < max(shares) < 1


def test_numbers_that_are_written_into_a_profile_are_read_back(engines):
    numbers = {p.path: p.number(p.text(p.prior * 1.234)) for p in parameters.PARAMETERS}
    profiles.set_values(engines, "trtllm", numbers)
    assert profiles.values(engines, "trtllm") == numbers
    assert profiles.values(engines, "vllm") == profiles.values(ENGINES, "vllm")


def test_writing_the_numbers_that_a_profile_has_changes_nothing(engines):
    for name in profiles.fitted(engines):
        profiles.set_values(engines, name, profiles.values(engines, name))
        assert (engines / f"{name}.yaml").read_bytes() == (ENGINES / f"{name}.yaml").read_bytes()


def test_a_profile_that_states_no_numbers_runs_with_those_that_it_extends():
    assert profiles.owner(ENGINES, "sglang_mixed") == "sglang"
    assert profiles.owner(ENGINES, "vllm_sync") == "vllm_sync"
    assert profiles.owner(ENGINES, "orrery") is None


def test_a_fitted_profile_without_one_of_the_parameters_is_refused(engines):
    path = engines / "vllm.yaml"
    path.write_text(path.read_text().replace("  per_prompt_token:", "  per_prompt_word:"))
    with pytest.raises(ValueError, match=r"vllm\.yaml: found no '\{value: \.\.\.\}' of front_end.per_prompt_token"):
        profiles.values(engines, "vllm")
    with pytest.raises(ValueError, match="found no line of front_end.per_prompt_token"):
        profiles.set_values(engines, "vllm", parameters.priors())


@pytest.mark.parametrize("text", ["5", "5 m", "5 tok"])
def test_a_time_without_its_unit_is_refused(text):
    with pytest.raises(ValueError, match=r"host.scheduler_base: found '.*', expected a time"):
        parameters.PARAMETERS[0].number(text)


def fitted_rows():
    with (ROOT / record.FITTED).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_shipped_profiles_have_what_the_command_found():
    rows = fitted_rows()
    assert {row["profile"] for row in rows} == set(profiles.fitted(ENGINES))
    for name in profiles.fitted(ENGINES):
        shipped = profiles.values(ENGINES, name)
        assert {row["parameter"]: float(row["value"]) for row in rows if row["profile"] == name} == shipped


def test_the_page_has_the_figures_that_the_command_found(tmp_path):
    text = (ROOT / record.PAGE).read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    record.write_page(page, record.left_out_tables(pandas.read_csv(ROOT / record.LEFT_OUT, keep_default_na=False, na_values=["nan"])))
    assert page.read_text(encoding="utf-8") == text


def test_contradictory_rows_count_in_the_errors_on_left_out_groups_only_where_they_are_asked_for():
    rows = pandas.DataFrame([
        {"kind": "family", "group": "one", "metric": "TTFT", "case_id": name, "contradiction": why, "error": error, "inside": True}
        for name, why, error in (("a", "", 0.1), ("b", "", -0.3), ("c", "no seat", 2.0))
    ])  # fmt: skip
    for asked, cases, mape in ((False, 2, 0.2), (True, 3, 0.8)):
        figures = record.left_out_figures(rows, contradictory=asked).set_index("group")
        assert figures.loc[record.ALL, "cases"] == cases
        assert figures.loc[record.ALL, "mape"] == pytest.approx(mape)


def test_every_run_with_contradictory_rows_is_listed_with_its_errors_and_the_reason():
    run = {"family": "MADE", "version": "vllm 1", "model": "m", "gpu": "h100"}
    errors = pandas.DataFrame([
        run | {"case_id": name, "metric": "TTFT", "contradiction": why, "error": error}
        for name, why, error in (("a", "", 9.0), ("b", "no seat", 0.1), ("c", "no seat", -0.3))
    ])  # fmt: skip
    _, header, rows = record.contradiction_table(errors)
    assert rows == [("MADE", "vllm 1", "m", "h100", "2", "", "", "20.0", "-10.0", "no seat")]
    assert len(header) == len(rows[0])


def test_a_page_without_the_lines_for_a_table_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Accuracy\n")
    with pytest.raises(ValueError, match="found no lines '<!-- fit: by family -->'"):
        record.write_page(page, [("by family", ("left out",), [])])


def left_rows(count, spread, *, seed, metric="TTFT", group="one", cell="cell", load="closed_loop", **columns):
    """Rows of a left-out group, published log-normal around simulated."""
    draw = np.random.default_rng(seed)
    return pandas.DataFrame({
        "kind": "family", "group": group, "cell": [f"{cell} {i % 5}" for i in range(count)], "metric": metric, "unit": "s",
        "case_id": [f"{group} {cell} {i}" for i in range(count)], "engine": "vllm 1", "load": load, "roofline": 0.0, "borrowed": 0.0,
        "interpolated": 0.0, "inferred": 0, "is_carried": False, "nodes": 1, "simulated": 1.0, "published": np.exp(spread * draw.normal(size=count)),
        "contradiction": "", "error": 0.0,
    } | columns)  # fmt: skip


def many_groups(spread, groups=8, count=200):
    return pandas.concat([left_rows(count, spread, seed=i, group=f"group {i}", cell=f"cell of {i}") for i in range(groups)])


def test_the_bounds_of_many_log_normal_residuals_are_their_quantiles():
    table, judged, sizes = calibration.fit(many_groups(0.3))
    low, high = table.rows["TTFT", intervals.NEAR, "vllm", "closed_loop"].bounds
    # The 90 % quantile of a standard normal is 1.2816.
    assert (low, high) == pytest.approx((-0.3 * 1.2816, 0.3 * 1.2816), abs=0.03)
    assert judged["inside"].mean() == pytest.approx(calibration.LEVEL, abs=0.01)
    assert sizes.loc[[("TTFT", intervals.NEAR, "vllm", "closed_loop")], "cells"].iloc[0] == 40


def test_intervals_stretch_until_groups_that_they_never_saw_lie_inside():
    # Each group is off by an amount of its own, so the others' spread says too little of it.
    draw = np.random.default_rng(5)
    rows = pandas.concat([left_rows(50, 0.02, seed=i, group=f"group {i}", cell=f"cell of {i}") for i in range(12)])
    shift = dict(zip(sorted(set(rows["group"])), draw.normal(0, 0.4, size=12)))
    rows["published"] *= np.exp(rows["group"].map(shift))
    _, judged, _ = calibration.fit(rows.reset_index(drop=True))
    assert judged["inside"].mean() >= calibration.LEVEL - 0.02


def test_each_kind_of_metric_has_as_many_inside_as_is_asked_for():
    # Of throughput groups are alike, of first tokens each is off by an amount of its own: one stretch for both would miss both.
    draw = np.random.default_rng(6)
    rows = pandas.concat([left_rows(60, 0.1, seed=i, group=f"group {i}", cell=f"cell of {i}") for i in range(12)])
    shift = dict(zip(sorted(set(rows["group"])), draw.normal(0, 0.4, size=12)))
    alike = rows.assign(metric="TPOT", case_id=rows["case_id"] + " other")
    rows["published"] *= np.exp(rows["group"].map(shift))
    _, judged, _ = calibration.fit(pandas.concat([rows, alike]).reset_index(drop=True))
    inside = judged.groupby("metric")["inside"].mean()
    assert inside["TTFT"] == pytest.approx(calibration.LEVEL, abs=0.03)
    assert inside["TPOT"] == pytest.approx(calibration.LEVEL, abs=0.03)


def test_the_interval_of_a_group_is_made_without_it():
    rows = many_groups(0.1, groups=4)
    poisoned = rows.assign(published=rows["published"].where(rows["group"] != "group 0", 50.0)).reset_index(drop=True)
    _, judged, _ = calibration.fit(poisoned)
    assert not judged[judged["group"] == "group 0"]["inside"].any()


def test_a_metric_of_a_single_source_has_no_narrower_interval_than_its_parent():
    alone = left_rows(30, 0.001, seed=9, metric="TTFT p99", group="alone", cell="alone").assign(cell="one cell")
    table, _, _ = calibration.fit(pandas.concat([many_groups(0.3), alone]).reset_index(drop=True))
    low, high = table.rows["TTFT p99", intervals.NEAR, "vllm", "closed_loop"].bounds
    assert low < -0.2 and high > 0.2


TABLE = intervals.Table(
    intervals.Factors(roofline=2.0, borrowed=0.5, interpolated=1.0, inferred=0.3),
    {("TPOT", intervals.NEAR, intervals.ANY, intervals.ANY): intervals.Row((-0.1, 0.2), 0.4, 1),
     ("per token", intervals.CARRIED, intervals.ANY, intervals.ANY): intervals.Row((-0.3, 0.6), 0.95, 1)},
)  # fmt: skip


def test_an_interval_widens_with_what_it_stands_on_and_scales_with_the_value():
    def width(**standing):
        low, high = intervals.interval(1.0, "TPOT", intervals.Standing(**standing), TABLE)
        return high / low

    assert width() == pytest.approx(np.exp(0.3))
    assert width(roofline=0.4) == pytest.approx(np.exp(0.3 * np.hypot(1, 0.8)))
    assert width(interpolated=0.6) == pytest.approx(np.exp(0.3 * np.hypot(1, 0.6)))
    assert width(borrowed=1.0) > width() and width(inferred=2) > width(inferred=1) > width()
    assert width(tables=intervals.CARRIED) == pytest.approx(np.exp(0.9))
    assert intervals.interval(2.0, "TPOT", intervals.Standing(), TABLE) == pytest.approx((2 * np.exp(-0.1), 2 * np.exp(0.2)))


@pytest.mark.parametrize(
    ("metric", "standing", "reason"),
    [
        ("joy", intervals.Standing(), "no published joy was compared"),
        ("TPOT", intervals.Standing(roofline=0.85), "85 % of the time stands on rooflines, and published values were compared up to 40 %"),
        ("TPOT", intervals.Standing(nodes=4), "a replica takes 4 nodes, and published values were compared within one node alone"),
    ],
)
def test_an_interval_is_withheld_outside_of_what_was_validated(metric, standing, reason):
    assert intervals.interval(1.0, metric, standing, TABLE) is None
    assert reason in intervals.withheld(metric, standing, TABLE)


def test_an_engine_that_was_never_compared_takes_the_interval_of_all():
    assert intervals.interval(1.0, "TPOT", intervals.Standing(engine="new", load="storm"), TABLE) == intervals.interval(
        1.0, "TPOT", intervals.Standing(), TABLE
    )


def test_intervals_with_other_columns_are_refused():
    with pytest.raises(ValueError, match="found columns metric, engine, expected metric, tables"):
        intervals.read(["metric,engine", "TPOT,vllm"])
