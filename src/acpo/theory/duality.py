"""The constrained problem for a fixed Q, solved twice: by its dual, and without one.

    max_π E_D[Q − α log π]   s.t.   E_D[log πβ] ≥ ε                               (Eq-CCI-Opt-Pro)

Slater's condition: some policy has E_D[log πβ] > ε, which is ε < ε_max = E_D[max_a log πβ(a|s)].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from acpo.theory.mdp import Array, Problem, expect, log, per_action
from acpo.theory.policies import closed_form, constraint, density


def largest_epsilon(problem: Problem) -> Array:
    """ε_max = E_D[max_a log πβ(a|s)]; beyond it no policy is feasible, (N,)."""
    top = np.where(problem.support, problem.log_beta, -np.inf).max(axis=-1)
    return (problem.occupancy * top).sum(axis=-1)


def objective(problem: Problem, q: Array, policy: Array) -> Array:
    """E_{s~D, a~π}[Q − α log π], (N,)."""
    entropic = q - per_action(problem.alpha) * log(policy)
    return (problem.occupancy * expect(policy, entropic)).sum(axis=-1)


def dual_value(problem: Problem, q: Array, lam: Array, epsilon: Array) -> Array:
    """max_π L(π, λ) = E_D[Z_λ(s)] − λ ε, convex in λ, (N,)."""
    return (problem.occupancy * closed_form(problem, q, lam)[1]).sum(axis=-1) - lam * epsilon


def dual_minimum(problem: Problem, q: Array, epsilon: Array) -> tuple[Array, Array]:
    """λ* and the dual's value there, by bisection on its slope g(λ) − ε; needs Slater."""
    low, high = np.zeros(len(problem)), problem.alpha.copy()
    for _ in range(60):
        short = constraint(problem, q, high) < epsilon
        if not short.any():
            break
        high = np.where(short, 2.0 * high, high)
    for _ in range(100):
        middle = 0.5 * (low + high)
        short = constraint(problem, q, middle) < epsilon
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    # Where the constraint does not bind, no point was ever short and `high` has come down to 0.
    return high, dual_value(problem, q, high, epsilon)


def constrained_optimum(problem: Problem, q: Array, epsilon: Array) -> tuple[Array, Array]:
    """The feasible policy of largest objective, by Newton steps on a log-barrier; no dual, no π*_λ.

    Maximises E_D[Q − α log π] + μ log(E_D[log πβ] − ε) over the probabilities themselves while μ
    falls to 1e-11, which is then the largest possible distance from the optimum. The Hessian is a
    diagonal and a matrix of rank one, so a step costs no linear solve.
    """
    weight = problem.occupancy[..., None]
    task = _Task(weight, weight * problem.log_beta, per_action(problem.alpha), q, epsilon)
    policy = _strictly_feasible(problem, epsilon)
    barrier = problem.alpha * task.slack(policy)
    moving = np.arange(len(problem))
    for _ in range(400):
        part = _Task(*(array[moving] for array in task))
        policy[moving], gain = part.newton(policy[moving], barrier[moving])
        settled = gain < 1e-2 * barrier[moving]
        unfinished = ~(settled & (barrier[moving] <= 1e-11))
        lower = np.where(settled, np.maximum(0.2 * barrier[moving], 1e-11), barrier[moving])
        barrier[moving] = lower
        moving = moving[unfinished]
        if not len(moving):
            break
    return policy, objective(problem, q, policy)


class _Task(NamedTuple):
    """The problem as arrays: weights of the states, gradient of the constraint, α, Q and ε."""

    weight: Array
    slope: Array
    alpha: Array
    q: Array
    epsilon: Array

    def slack(self, policy: Array) -> Array:
        return (self.slope * policy).sum((-2, -1)) - self.epsilon

    def value(self, policy: Array, barrier: Array) -> Array:
        room = self.slack(policy)
        inside = barrier * np.log(np.where(room > 0, room, 1.0))
        gained = (self.weight[..., 0] * expect(policy, self.q - self.alpha * log(policy))).sum(-1)
        return gained + np.where(room > 0, inside, -np.inf)

    def newton(self, policy: Array, barrier: Array) -> tuple[Array, Array]:
        """The policy after one step, and what the step promised to gain."""
        # A probability this small neither matters nor moves; outside the support it is 0.
        inverse = np.where(policy > 1e-100, policy / (self.alpha * self.weight), 0.0)
        room = self.slack(policy)
        gradient = self.weight * (self.q - self.alpha * (log(policy) + 1.0))
        gradient = gradient + per_action(barrier / room) * self.slope
        step, turn = _within_simplex(inverse, gradient), _within_simplex(inverse, self.slope)
        curvature = barrier / room**2
        along = curvature * (self.slope * step).sum((-2, -1))
        step -= per_action(along / (1.0 + curvature * (self.slope * turn).sum((-2, -1)))) * turn
        gain = (gradient * step).sum((-2, -1))

        # Most of the way to the nearest wall at most, then halved until enough is gained.
        walls = np.where(step < 0, policy / np.where(step < 0, -step, 1.0), np.inf).min((-2, -1))
        closing = -(self.slope * step).sum((-2, -1))
        walls = np.where(closing > 0, np.minimum(walls, room / np.maximum(closing, 1e-300)), walls)
        length = np.minimum(0.99 * walls, 1.0)
        before = self.value(policy, barrier)
        for _ in range(30):
            moved = policy + per_action(length) * step
            enough = before + 1e-4 * length * gain - 1e-13 * (1.0 + np.abs(before))
            short = self.value(moved, barrier) < enough
            if not short.any():
                break
            length = np.where(short, 0.5 * length, length)
        return np.where(per_action(short), policy, moved), gain


def _within_simplex(inverse: Array, vector: Array) -> Array:
    """H⁻¹ (vector − ν(s)) with the ν(s) that keeps each state's probabilities summing to 1."""
    shift = (inverse * vector).sum(axis=-1, keepdims=True) / inverse.sum(axis=-1, keepdims=True)
    return inverse * (vector - shift)


def _strictly_feasible(problem: Problem, epsilon: Array) -> Array:
    """A mixture of πβ's likeliest actions and its uniform support, with slack to spare."""
    masked = np.where(problem.support, problem.log_beta, -np.inf)
    likeliest = np.eye(masked.shape[-1])[masked.argmax(axis=-1)]
    uniform = problem.support / problem.support.sum(axis=-1, keepdims=True)
    best = largest_epsilon(problem)
    spread = best - (problem.occupancy * density(problem, uniform)).sum(axis=-1)
    share = np.minimum(0.5 * (best - epsilon) / np.maximum(spread, 1e-300), 0.5)
    return per_action(1.0 - share) * likeliest + per_action(share) * uniform
