"""Batches of tabular problems, and their values and occupancies by linear solves."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """N tabular MDPs with a behaviour policy each: N problems, S states, A actions."""

    transitions: Array
    """T(s'|s,a), (N, S, A, S)."""
    rewards: Array
    """r(s,a), (N, S, A)."""
    start: Array
    """Distribution of the first state, (N, S)."""
    gamma: Array
    """γ, (N,)."""
    alpha: Array
    """α, (N,)."""
    behavior: Array
    """πβ(a|s), (N, S, A)."""
    other: Array
    """Some other policy inside the support of πβ, for statements about any policy, (N, S, A)."""

    def __len__(self) -> int:
        return len(self.gamma)

    @cached_property
    def support(self) -> Array:
        """Where πβ(a|s) > 0."""
        return self.behavior > 0

    @cached_property
    def log_beta(self) -> Array:
        """log πβ(a|s) inside the support, and 0 outside, where nothing may read it."""
        return log(self.behavior)

    @cached_property
    def occupancy(self) -> Array:
        """d_πβ(s); it is also the state distribution of the data, D."""
        return occupancy(self, self.behavior)

    @cached_property
    def plain(self) -> tuple[Array, Array]:
        """Q and V of πβ under the reward alone."""
        return plain_values(self, self.behavior)

    @cached_property
    def soft(self) -> tuple[Array, Array]:
        """Q and V of πβ with entropy (Section 3.1)."""
        return soft_values(self, self.behavior)

    @cached_property
    def shaped(self) -> tuple[Array, Array]:
        """Q̃ and Ṽ of πβ under the shaped reward r̃ = r − α log πβ (Lemma 1).

        Ṽ is the soft value of πβ, and Q̃ its soft Q less α log πβ.
        """
        shaped = self.rewards - per_action(self.alpha) * self.log_beta
        values = state_values(self, self.behavior, shaped)
        return look_ahead(self, shaped, values), values

    def take(self, index: Array) -> Problem:
        """Some of the problems."""
        return Problem(*(getattr(self, field.name)[index] for field in fields(self)))

    @cached_property
    def beta_bound(self) -> Array:
        """B = max |log πβ(a|s)| over the support, (N,)."""
        return np.abs(self.log_beta).max(axis=(-2, -1))


def log(probability: Array) -> Array:
    """Logarithm of the positive entries, 0 for the others: 0·log 0 = 0 in every expectation."""
    return np.log(np.where(probability > 0, probability, 1.0))


def expect(policy: Array, values: Array) -> Array:
    """E_{a~π(·|s)}[values(s,a)]; an action that is never taken does not count, even at ±∞."""
    return np.where(policy > 0, policy * np.where(policy > 0, values, 0.0), 0.0).sum(axis=-1)


def per_state(number: ArrayLike) -> Array:
    """One number per problem, to stand beside (N, S)."""
    return np.asarray(number)[..., None]


def per_action(number: ArrayLike) -> Array:
    """One number per problem, to stand beside (N, S, A)."""
    return np.asarray(number)[..., None, None]


# --- values -------------------------------------------------------------------------------------


def state_values(problem: Problem, policy: Array, rewards: Array) -> Array:
    """V = (I − γ T_π)⁻¹ r_π for the rewards r(s,a) as given."""
    flow = np.einsum("nsa,nsat->nst", policy, problem.transitions)
    system = np.eye(flow.shape[-1]) - per_action(problem.gamma) * flow
    return np.linalg.solve(system, expect(policy, rewards)[..., None])[..., 0]


def look_ahead(problem: Problem, rewards: Array, values: Array) -> Array:
    """Q(s,a) = r(s,a) + γ E_{s'}[V(s')]."""
    ahead = np.einsum("nsat,nt->nsa", problem.transitions, values)
    return rewards + per_action(problem.gamma) * ahead


def plain_values(problem: Problem, policy: Array) -> tuple[Array, Array]:
    """Q^π and V^π of the reward alone: V = E_π[Q]."""
    values = state_values(problem, policy, problem.rewards)
    return look_ahead(problem, problem.rewards, values), values


def soft_values(problem: Problem, policy: Array) -> tuple[Array, Array]:
    """Q^π and V^π of Section 3.1: Q = r + γ E[V(s')], V = E_π[Q − α log π]."""
    entropic = problem.rewards - per_action(problem.alpha) * log(policy)
    values = state_values(problem, policy, entropic)
    return look_ahead(problem, problem.rewards, values), values


def soft_return(problem: Problem, policy: Array) -> Array:
    """J(π) = E[Σ γ^t (r − α log π)], (N,)."""
    return (problem.start * soft_values(problem, policy)[1]).sum(axis=-1)


def occupancy(problem: Problem, policy: Array) -> Array:
    """d_π(s) = (1 − γ) Σ_t γ^t Pr(s_t = s), as the solution of d = (1 − γ) ρ + γ T_πᵀ d."""
    flow = np.einsum("nsa,nsat->nts", policy, problem.transitions)
    system = np.eye(flow.shape[-1]) - per_action(problem.gamma) * flow
    first = per_state(1.0 - problem.gamma) * problem.start
    return np.linalg.solve(system, first[..., None])[..., 0]


# --- problems -----------------------------------------------------------------------------------


def random(
    count: int, states: int, actions: int, rng: np.random.Generator, holes: bool = False
) -> Problem:
    """Near-deterministic to near-uniform transitions, rewards in [−1, 1], γ < 0.99, α in [0.05, 2].

    `holes`: πβ never takes some of the actions.
    """
    transitions = _dirichlet((count, states, actions, states), rng)
    rewards = rng.uniform(-1.0, 1.0, (count, states, actions))
    start = _dirichlet((count, states), rng)
    return _with_policies(transitions, rewards, start, rng, holes)


def with_uniform_behavior(problem: Problem) -> Problem:
    """The same problems with πβ(a|s) = 1/A, under which λ moves nothing."""
    uniform = np.full_like(problem.behavior, 1.0 / problem.behavior.shape[-1])
    return replace(problem, behavior=uniform)


def gridworld(count: int, side: int, rng: np.random.Generator) -> Problem:
    """side × side cells, four moves, one in ten at random; the far corner pays 1 and stays."""
    cells = np.stack(np.divmod(np.arange(side * side), side), axis=-1)
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
    landed = np.clip(cells[:, None] + moves, 0, side - 1) @ [side, 1]
    meant = np.eye(side * side)[landed]
    transitions = 0.9 * meant + 0.1 * meant.mean(axis=1, keepdims=True)
    transitions[-1] = np.eye(side * side)[-1]
    rewards = np.zeros((side * side, 4))
    rewards[-1] = 1.0
    return _repeated(count, transitions, rewards, rng)


def chain(count: int, length: int, rng: np.random.Generator) -> Problem:
    """A row of states: left is certain and pays 0.1 at the near end, right pays 1 at the far."""
    transitions = np.zeros((length, 2, length))
    for state in range(length):
        transitions[state, 0, max(state - 1, 0)] = 1.0
        transitions[state, 1, min(state + 1, length - 1)] += 0.7
        transitions[state, 1, state] += 0.3
    rewards = np.zeros((length, 2))
    rewards[0, 0], rewards[-1, 1] = 0.1, 1.0
    return _repeated(count, transitions, rewards, rng)


def single(
    transitions: Any,
    rewards: Any,
    behavior: Any,
    *,
    gamma: float,
    alpha: float = 1.0,
    other: Any = None,
    start: Any = None,
) -> Problem:
    """One problem from its numbers; it starts in the first state unless told otherwise."""
    behavior = np.asarray(behavior, dtype=np.float64)
    other = behavior if other is None else np.asarray(other, dtype=np.float64)
    start = np.eye(len(behavior))[0] if start is None else np.asarray(start, dtype=np.float64)
    numbers = (transitions, rewards, start, gamma, alpha, behavior, other)
    return Problem(*(np.asarray(number, dtype=np.float64)[None] for number in numbers))


def bandit(rewards: Any, behavior: Any, *, alpha: float = 1.0, other: Any = None) -> Problem:
    """One state and γ = 0: the smallest problem there is."""
    stay = np.ones((1, len(behavior), 1))
    other = None if other is None else [other]
    return single(stay, [rewards], [behavior], gamma=0.0, alpha=alpha, other=other)


def _repeated(count: int, transitions: Array, rewards: Array, rng: np.random.Generator) -> Problem:
    """The same task with `count` behaviour policies, discounts and temperatures."""
    start = np.zeros(len(rewards))
    start[0] = 1.0
    transitions, rewards, start = (
        np.repeat(part[None], count, axis=0) for part in (transitions, rewards, start)
    )
    return _with_policies(transitions, rewards, start, rng, holes=False)


def _with_policies(
    transitions: Array, rewards: Array, start: Array, rng: np.random.Generator, holes: bool
) -> Problem:
    count = len(rewards)
    behavior = _dirichlet(rewards.shape, rng)
    other = _dirichlet(rewards.shape, rng)
    if holes:
        # The first action is always kept, so that every state has one.
        kept = rng.uniform(size=rewards.shape) < 0.6
        kept[..., 0] = True
        behavior, other = _restricted(behavior, kept), _restricted(other, kept)
    return Problem(
        transitions=transitions,
        rewards=rewards,
        start=start,
        gamma=rng.uniform(0.0, 0.99, count),
        alpha=np.exp(rng.uniform(np.log(0.05), np.log(2.0), count)),
        behavior=behavior,
        other=other,
    )


def _restricted(policy: Array, kept: Array) -> Array:
    kept_part = np.where(kept, policy, 0.0)
    return kept_part / kept_part.sum(axis=-1, keepdims=True)


def _dirichlet(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Distributions on the last axis, no probability under 1e-4 before they are normalised."""
    concentration = rng.choice([0.3, 1.0, 5.0], size=(shape[0],) + (1,) * (len(shape) - 1))
    drawn = rng.gamma(np.broadcast_to(concentration, shape))
    drawn = drawn / np.maximum(drawn.sum(axis=-1, keepdims=True), 1e-300)
    drawn = np.maximum(drawn, 1e-4)
    return drawn / drawn.sum(axis=-1, keepdims=True)
