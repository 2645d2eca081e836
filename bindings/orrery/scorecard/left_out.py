"""Leaving whole groups of published cases out: what parameters are chosen from, and errors on groups they never saw."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas

from . import choice, statistics
from .cases import Case
from .choice import Problem
from .metrics import find
from .outcomes import Outcome
from .parameters import PARAMETERS, Values
from .solve import Rows, loss

KINDS = ("family", "version", "model", "gpu")  # of groups that are left out
CHOSEN, JUDGED = 12, 24  # cases of a cell that parameters are chosen from, and that they are judged on, at most
# What residuals are divided by, per kind of metric: the error that is asked for, so that each kind counts alike.
SCALES = {"first token": 0.25, "per token": 0.1, "throughput": 0.12}
METRICS = {"first token": ("TTFT", "prefill time"), "per token": ("TPOT", "decode time"), "throughput": ("output throughput",)}
_KIND_OF = {metric: kind for kind, metrics in METRICS.items() for metric in metrics}
QUEUED = "all_at_once"  # the load under which throughput says something that latencies do not

Numbers = Mapping[str, Values]  # by profile
Evaluate = Callable[[Sequence[Case], Numbers], list[Outcome]]


def table(outcomes: Sequence[Outcome]) -> pandas.DataFrame:
    """`statistics.table` with the cell of a row (family, model, version) and the kind of its metric."""
    errors = statistics.table(outcomes)
    if errors.empty:
        return errors
    return errors.assign(cell=[cell(row) for row in errors.to_dict("records")], kind_of_metric=errors["metric"].map(_KIND_OF))


def sample(cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many cases of a cell, by SHA-256 of their ids; of those that are compared in what is judged."""
    cells: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: hashlib.sha256(case.case_id.encode()).digest()):
        labels = {found.label for m in case.measurements if (found := find(m.metric, m.unit))}
        if labels & _KIND_OF.keys():
            cells.setdefault(cell(statistics.groups(case)), []).append(case)
    kept = {case.case_id for group in cells.values() for case in group[:most]}
    return [case for case in cases if case.case_id in kept]


def cell(groups: Mapping[str, str]) -> str:
    """What counts as one group of cases."""
    return f"{groups['family']}, {groups['model']}, {groups['version']}"


def _is_used(errors: pandas.DataFrame) -> pandas.Series:
    is_same_as_latency = (errors["kind_of_metric"] == "throughput") & (errors["load"] != QUEUED)
    return errors["kind_of_metric"].notna() & ~is_same_as_latency & (errors["contradiction"] == "")


def problem(base: Sequence[Outcome], stepped: Sequence[Sequence[Outcome]], at: Numbers, steps: Sequence[Mapping[str, float]],
            owner: Mapping[str, str]) -> Problem:  # fmt: skip
    """Linear residuals about the priors.

    `base` are the outcomes with the numbers `at`; stepped[i] those with parameter i moved by steps[i][profile] deviations.
    `owner` says which fitted profile a case (id) runs with.
    """
    here = _residuals(base)
    moved = {i: _residuals(outcomes)["residual"] for i, outcomes in enumerate(stepped)}
    frame = here.join(pandas.DataFrame(moved), how="inner").dropna(subset=list(moved))
    profile = frame["case_id"].map(owner).to_numpy()
    jacobian = np.column_stack([
        (frame[i] - frame["residual"]).to_numpy() / np.array([steps[i][name] for name in profile]) for i in range(len(moved))
    ])  # fmt: skip
    groups = frame[[*KINDS, "cell", "kind_of_metric", "case_id", "metric"]].reset_index(drop=True)
    rows = Rows(frame["residual"].to_numpy(), jacobian, choice.weights(groups["cell"], groups["kind_of_metric"]))
    return _about_priors(Problem(rows, profile, groups), at)


def moved_to(found: Problem, outcomes: Sequence[Outcome], at: Numbers) -> Problem:
    """The same slopes through the residuals of `outcomes`, simulated with the numbers `at`."""
    keys = pandas.MultiIndex.from_frame(found.groups[["case_id", "metric"]])
    residuals = _residuals(outcomes)["residual"].reindex(keys).to_numpy()
    here = Problem(Rows(residuals, found.rows.jacobian, found.rows.weights), found.profile, found.groups)
    return _about_priors(here.where(np.isfinite(residuals)), at)


def _residuals(outcomes: Sequence[Outcome]) -> pandas.DataFrame:
    errors = table(outcomes)
    errors = errors[_is_used(errors)].drop_duplicates(["case_id", "metric"])
    scale = errors["kind_of_metric"].map(SCALES)
    found = errors.assign(residual=np.log(errors["simulated"] / errors["published"]) / scale)
    return found.set_index(pandas.MultiIndex.from_frame(found[["case_id", "metric"]]))


def _about_priors(here: Problem, at: Numbers) -> Problem:
    away = {name: np.array([(p.prior - values[p.path]) / p.deviation for p in PARAMETERS]) for name, values in at.items()}
    steps = np.array([away[name] for name in here.profile]).reshape(len(here.profile), len(PARAMETERS))
    shifted = here.rows.residuals + np.einsum("ij,ij->i", here.rows.jacobian, steps)
    return Problem(Rows(shifted, here.rows.jacobian, here.rows.weights), here.profile, here.groups)


def loss_at(found: Problem, at: Numbers, profiles: Sequence[str]) -> float:
    """Loss of the rows of `profiles`, whose residuals were simulated with the numbers `at`, per unit of weight."""
    steps = np.array([[(at[name][p.path] - p.prior) / p.deviation for p in PARAMETERS] for name in found.profile])
    residuals = found.rows.residuals + np.einsum("ij,ij->i", found.rows.jacobian, steps.reshape(found.rows.jacobian.shape))
    mask = np.isin(found.profile, list(profiles))
    return loss(residuals[mask], found.rows.weights[mask]) / max(found.rows.weights[mask].sum(), 1e-300)


def numbers_without(found: Problem, profiles: Sequence[str], kind: str, group: str) -> dict[str, dict[str, float]]:
    """Numbers of every profile, chosen (trust in priors included) without the rows of one group."""
    rest = found.where((found.groups[kind] != group).to_numpy())
    return choice.numbers(choice.chosen(rest, profiles, choice.trust(rest, profiles)))


def judged(cases: Sequence[Case], found: Problem, profiles: Sequence[str], evaluate: Evaluate,
           tell: Callable[[str], None]) -> Iterator[pandas.DataFrame]:  # fmt: skip
    """For each group of each kind the table of its cases, simulated with numbers that were chosen without it.

    Columns `kind` and `group` say what was left out.
    """
    groups = [statistics.groups(case) for case in cases]
    for kind in KINDS:
        for group in sorted({of_case[kind] for of_case in groups}):
            tell(f"without {kind} {group}")
            numbers = numbers_without(found, profiles, kind, group)
            outcomes = evaluate([case for case, of_case in zip(cases, groups) if of_case[kind] == group], numbers)
            errors = table(outcomes)
            if not errors.empty:
                yield errors.assign(kind=kind, group=group)


def figures(left: pandas.DataFrame, *columns: str) -> pandas.DataFrame:
    """MAPE, median, bias and number of cases of the rows by `columns`, as `statistics.errors_by`."""
    return statistics.errors_by(left, *columns)
