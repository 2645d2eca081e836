"""Choosing the parameters of all engine profiles from residuals, and how strongly to trust priors.

Rows of one cell (source family, model, engine version) count together as one, so that a version with many rows does not
decide. All profiles of a generation are first given one common set of numbers, drawn towards the priors; then each its own,
drawn towards the common one. How strongly, and which parameters stay at their priors, is chosen by the loss of cells left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas

from .parameters import PARAMETERS
from .solve import Rows, loss, solve

FULL_CELL = 10  # cases of a cell that count as a whole one
FOLDS = 5  # of cells left out while choosing
COMMON = (0.03, 0.1, 0.3)  # strengths, in cells, of priors on the common numbers
OWN = (0.1, 0.3, 1.0)  # of the common numbers on a profile's own
# Engines of before 2025, measured as static and offline batches: other software, which says nothing of today's and is not told by it.
EARLIER = ("trtllm_engine", "vllm_eager")
WORTH = 0.003  # what a parameter must lower the loss of cells left out by, relatively, to be free


@dataclasses.dataclass(frozen=True)
class Problem:
    """Linear residuals about the priors, a row for each compared metric that parameters are chosen from.

    The Jacobian is per deviation of a parameter.
    """

    rows: Rows
    profile: np.ndarray  # [rows] names
    groups: pandas.DataFrame  # [rows] columns to leave out by, `cell` among them

    def where(self, mask: np.ndarray) -> Problem:
        """The rows where `mask` is true."""
        return Problem(self.rows.where(mask), self.profile[mask], self.groups[mask].reset_index(drop=True))


@dataclasses.dataclass(frozen=True)
class Trust:
    """How strongly numbers are drawn: the common ones to the priors, a profile's to these; and which stay put.

    Those that are shared are the common ones in every profile; those that are held are at their priors.
    """

    common: float = 0.3
    own: float = 0.3
    shared: frozenset[int] = frozenset()  # indices of PARAMETERS
    held: frozenset[int] = frozenset()


def generations(profiles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Profiles of EARLIER engines and of today's, which say nothing of each other."""
    return [name for name in profiles if name in EARLIER], [name for name in profiles if name not in EARLIER]


def weights(cells: Sequence[object], kinds: Sequence[object]) -> np.ndarray:
    """Of rows: those of a cell and a kind of metric add up to 1, or to less where they are few."""
    keys = pandas.Series(list(zip(cells, kinds)))
    counts = keys.map(keys.value_counts()).to_numpy(dtype=float)
    return np.minimum(1, counts / FULL_CELL) / counts


def chosen(problem: Problem, profiles: Sequence[str], trust: Trust) -> dict[str, np.ndarray]:
    """Of each profile the step [parameters] from the priors, in deviations."""
    held = np.isin(np.arange(len(PARAMETERS)), list(trust.held))
    low = np.where(held, 0, [(p.low - p.prior) / p.deviation for p in PARAMETERS])
    high = np.where(held, 0, [(p.high - p.prior) / p.deviation for p in PARAMETERS])
    ones = np.ones(len(PARAMETERS))
    shared = np.isin(np.arange(len(PARAMETERS)), list(trust.shared))
    is_earlier = np.isin(problem.profile, EARLIER)
    steps = {}
    for generation in (is_earlier, ~is_earlier):
        common = solve(problem.rows.where(generation), centre=0 * ones, strength=trust.common * ones, low=low, high=high)
        own_low, own_high = np.where(shared, common, low), np.where(shared, common, high)
        for name in profiles:
            if (name in EARLIER) == (generation is is_earlier):
                rows = problem.rows.where(problem.profile == name)
                steps[name] = solve(rows, centre=common, strength=trust.own * ones, low=own_low, high=own_high)
    return steps


def left_out_loss(problem: Problem, profiles: Sequence[str], trust: Trust) -> float:
    """Loss of the cells of each fold with parameters chosen without them, per cell."""
    folds = problem.groups["cell"].map(_fold).to_numpy()
    total = 0.0
    for fold in np.unique(folds):
        steps = chosen(problem.where(folds != fold), profiles, trust)
        rest = problem.where(folds == fold)
        residuals = rest.rows.residuals + np.einsum("ij,ij->i", rest.rows.jacobian, np.array([steps[n] for n in rest.profile]))
        total += loss(residuals, rest.rows.weights)
    return total / problem.rows.weights.sum()


def trust(problem: Problem, profiles: Sequence[str]) -> Trust:
    """The strengths with the least loss of cells left out; then parameters that are not worth it are shared or held."""
    fixed = frozenset(i for i, parameter in enumerate(PARAMETERS) if not parameter.is_fitted)
    options = [Trust(common, own, held=fixed) for common in COMMON for own in OWN]
    losses = {option: left_out_loss(problem, profiles, option) for option in options}
    best = min(options, key=losses.__getitem__)
    least = losses[best]
    for i in sorted(set(range(len(PARAMETERS))) - fixed):
        for fewer in (dataclasses.replace(best, shared=best.shared | {i}), dataclasses.replace(best, held=best.held | {i})):
            found = left_out_loss(problem, profiles, fewer)
            if found < least * (1 + WORTH):
                best, least = fewer, min(found, least)
    return best


def numbers(steps: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Values in the parameters' units, rounded as profiles state them."""
    return {
        name: {p.path: p.number(p.text(p.prior + p.deviation * float(s))) for p, s in zip(PARAMETERS, step)} for name, step in steps.items()
    }


def _fold(cell: object) -> int:
    return hashlib.sha256(repr(cell).encode()).digest()[0] % FOLDS
