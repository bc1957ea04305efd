"""Values and occupancies of tabular problems, against slower ways to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from acpo.theory import mdp


@pytest.fixture
def problem() -> mdp.Problem:
    return mdp.random(6, 4, 3, np.random.default_rng(1))


def test_linear_solves_agree_with_iterated_evaluation(problem: mdp.Problem) -> None:
    q, v = mdp.soft_values(problem, problem.other)
    for n in range(len(problem)):
        policy, alpha, gamma = problem.other[n], problem.alpha[n], problem.gamma[n]
        values = np.zeros(4)
        for _ in range(3000):
            ahead = problem.rewards[n] + gamma * problem.transitions[n] @ values
            values = (policy * (ahead - alpha * np.log(policy))).sum(axis=-1)
        np.testing.assert_allclose(v[n], values, rtol=1e-9)
        np.testing.assert_allclose(q[n], ahead, rtol=1e-9)


def test_occupancy_is_the_discounted_sum_of_state_distributions(problem: mdp.Problem) -> None:
    found = mdp.occupancy(problem, problem.other)
    for n in range(len(problem)):
        flow = np.einsum("sa,sat->st", problem.other[n], problem.transitions[n])
        state, total = problem.start[n], np.zeros(4)
        for t in range(3000):
            total += (1 - problem.gamma[n]) * problem.gamma[n] ** t * state
            state = state @ flow
        np.testing.assert_allclose(found[n], total, atol=1e-10)


def test_the_shaped_value_is_the_soft_value_of_the_behaviour(problem: mdp.Problem) -> None:
    soft_q, soft_v = problem.soft
    shaped_q, shaped_v = problem.shaped
    np.testing.assert_allclose(shaped_v, soft_v, rtol=1e-10)
    alpha = problem.alpha[:, None, None]
    np.testing.assert_allclose(shaped_q, soft_q - alpha * np.log(problem.behavior), rtol=1e-9)


def test_the_soft_return_agrees_with_roll_outs() -> None:
    rng = np.random.default_rng(2)
    problem = mdp.single(
        [[[0.8, 0.2], [0.1, 0.9]], [[0.5, 0.5], [0.0, 1.0]]],
        [[1.0, 0.0], [-1.0, 0.5]],
        [[0.7, 0.3], [0.4, 0.6]],
        gamma=0.8,
        alpha=0.5,
    )
    policy = problem.behavior[0]
    count, total = 40_000, 0.0
    state, returns = np.zeros(count, dtype=int), np.zeros(count)
    for t in range(60):
        action = (rng.random(count) > policy[state, 0]).astype(int)
        reward = problem.rewards[0, state, action] - 0.5 * np.log(policy[state, action])
        returns += 0.8**t * reward
        state = (rng.random(count) > problem.transitions[0, state, action, 0]).astype(int)
    total = returns.mean()
    error = returns.std() / np.sqrt(count)
    assert abs(mdp.soft_return(problem, problem.behavior)[0] - total) < 4 * error


def test_a_gridworld_moves_slips_and_stays_at_its_goal() -> None:
    problem = mdp.gridworld(2, 3, np.random.default_rng(0))
    moves = problem.transitions[1]
    np.testing.assert_allclose(moves.sum(axis=-1), 1.0)
    # From the middle (cell 4) to the right: 0.9 and a quarter of 0.1; elsewhere a quarter of 0.1.
    np.testing.assert_allclose(moves[4, 0, [5, 7, 3, 1]], [0.925, 0.025, 0.025, 0.025])
    # From the first corner upwards: two of four moves bump into a wall.
    assert moves[0, 3, 0] == pytest.approx(0.9 + 0.1 * 2 / 4)
    assert (moves[8, :, 8] == 1.0).all()
    assert problem.rewards[0].sum() == problem.rewards[0, 8].sum() == 4.0


def test_a_chain_pays_a_little_at_the_near_end_and_much_at_the_far() -> None:
    problem = mdp.chain(1, 3, np.random.default_rng(0))
    np.testing.assert_allclose(problem.transitions[0, 1], [[1, 0, 0], [0, 0.3, 0.7]])
    np.testing.assert_allclose(problem.transitions[0, 2], [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(problem.rewards[0], [[0.1, 0], [0, 0], [0, 1]])


def test_holes_are_shared_by_both_policies_and_leave_an_action() -> None:
    problem = mdp.random(50, 3, 3, np.random.default_rng(0), holes=True)
    assert (~problem.support).any()
    assert problem.support.any(axis=-1).all()
    assert (problem.other[~problem.support] == 0).all()
    np.testing.assert_allclose(problem.behavior.sum(axis=-1), 1.0)
    assert (problem.log_beta[~problem.support] == 0).all()


def test_some_of_the_problems_are_the_same_problems(problem: mdp.Problem) -> None:
    part = problem.take(np.array([4, 1]))
    np.testing.assert_array_equal(part.rewards, problem.rewards[[4, 1]])
    np.testing.assert_allclose(part.soft[1], problem.soft[1][[4, 1]])
