"""Parameters from the residuals of published cases: robust least squares, bounded, drawn towards priors."""

from __future__ import annotations

import dataclasses

import numpy as np

ROUNDS = 30  # of reweighting; it settles within ten


@dataclasses.dataclass(frozen=True)
class Rows:
    """Residuals at one point and how they move, a row for each compared metric."""

    residuals: np.ndarray  # [rows], in units of what counts as one error
    jacobian: np.ndarray  # [rows, parameters]
    weights: np.ndarray  # [rows]

    def where(self, mask: np.ndarray) -> Rows:
        """The rows where `mask` is true."""
        return Rows(self.residuals[mask], self.jacobian[mask], self.weights[mask])

    def at(self, step: np.ndarray) -> np.ndarray:
        """Residuals `step` away, as far as they are linear."""
        return self.residuals + self.jacobian @ step


def loss(residuals: np.ndarray, weights: np.ndarray) -> float:
    """Sum of weight x log(1 + r^2): as squares near zero, and nearly flat for what is not modelled at all."""
    return float(weights @ np.log1p(residuals**2))


def solve(rows: Rows, *, centre: np.ndarray, strength: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The step [parameters] from the rows' point with the least
    loss + sum of strength x (step - centre)^2 that lies between `low` and `high`.

    Reweighted least squares: log(1 + r^2) has the weight 1 / (1 + r^2). Strengths above 0 make each round's solution
    the only one, whatever the rows say.
    """
    step = np.clip(centre, low, high)
    for _ in range(ROUNDS):
        weights = rows.weights / (1 + rows.at(step) ** 2)
        scaled = rows.jacobian.T * weights
        matrix = scaled @ rows.jacobian + np.diag(strength)
        target = strength * centre - scaled @ rows.residuals
        before = step
        step = _bounded(matrix, target, step, low, high)
        if np.abs(step - before).max() < 1e-5:
            break
    return step


def _bounded(matrix: np.ndarray, target: np.ndarray, start: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The least x' matrix x / 2 - target' x within the bounds; matrix is positive definite.

    Entries that would leave the bounds are held there, and let go where the slope leads back inside.
    """
    x, held = np.array(start), low == high
    for _ in range(10 * len(x)):
        free = ~held
        x[free] = np.linalg.solve(matrix[np.ix_(free, free)], target[free] - matrix[np.ix_(free, held)] @ x[held])
        outside = free & ((x < low) | (x > high))
        if outside.any():
            x = np.clip(x, low, high)
            held |= outside
            continue
        slope = matrix @ x - target
        inwards = held & (low < high) & np.where(x <= low, slope < -1e-9, slope > 1e-9)
        if not inwards.any():
            break
        held[np.argmax(np.where(inwards, np.abs(slope), 0))] = False
    return np.clip(x, low, high)
