"""Evaluation is what a plain Gymnasium loop would give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import acpo
from acpo.actors import Mean, Network
from acpo.data.features import Features
from acpo.errors import UserError
from acpo.evaluation.rollouts import ActionBox, Evaluator, normalized_score, stacked
from acpo.policy import Policy
from acpo.tasks import find_task


def by_hand(environment: str, act: Callable[[np.ndarray], np.ndarray], seed: int) -> float:
    env = acpo.make_env(environment)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminal, timeout, _ = env.step(act(observation))
        total, over = total + float(reward), terminal or timeout
    return total


def test_returns_equal_a_hand_written_loop(finished_run: Path) -> None:
    policy = acpo.load_policy(finished_run)
    found = Evaluator("Hopper-v4", episodes=3)([policy], seed=40)
    by_loop = [[by_hand("Hopper-v4", policy, 40 + e) for e in range(3)]]
    # A product over a batch may round differently from one over a single row.
    np.testing.assert_allclose(found.returns, by_loop, rtol=1e-3)
    assert (found.lengths > 1).all()


def test_episodes_advance_together_one_policy_call_per_step() -> None:
    batches: list[int] = []

    def policy(observations: np.ndarray) -> np.ndarray:
        batches.append(len(observations))
        return np.zeros((len(observations), 3))

    found = Evaluator("Hopper-v4", episodes=4)([policy], seed=0)
    assert batches == [4] * found.lengths.max()


def test_an_episode_does_not_depend_on_when_another_ends(finished_run: Path) -> None:
    policy = acpo.load_policy(finished_run)
    evaluator = Evaluator("Hopper-v4", episodes=3)
    first, later = evaluator([policy], seed=40), evaluator([policy], seed=41)
    np.testing.assert_allclose(first.returns[0, 1:], later.returns[0, :2], rtol=1e-3)


def test_an_evaluator_can_be_used_again_and_has_no_memory(finished_run: Path) -> None:
    policy = acpo.load_policy(finished_run)
    evaluator = Evaluator("Hopper-v4", episodes=2)
    first = evaluator([policy], seed=40)
    evaluator([lambda s: np.ones((len(s), 3))], seed=1)
    again = evaluator([policy], seed=40)
    np.testing.assert_array_equal(first.returns, again.returns)
    np.testing.assert_array_equal(first.lengths, again.lengths)


def test_every_policy_meets_the_same_episodes() -> None:
    low, high = (lambda s: np.full((len(s), 1), -1.0)), (lambda s: np.full((len(s), 1), 1.0))
    found = Evaluator("Pendulum-v1", episodes=2)([low, high, low], seed=0)
    np.testing.assert_array_equal(found.returns[0], found.returns[2])
    assert (found.returns[0] != found.returns[1]).all()
    assert found.lengths.tolist() == [[200, 200]] * 3


def test_actions_are_stretched_to_the_box_of_the_environment() -> None:
    """Pendulum's box is [−2, 2]; a policy speaks [−1, 1]."""
    found = Evaluator("Pendulum-v1", episodes=1)([lambda s: np.full((len(s), 1), -0.5)], seed=3)
    assert found.returns[0, 0] == by_hand("Pendulum-v1", lambda s: np.full(1, -1.0, np.float32), 3)


def test_a_box_of_minus_one_to_one_changes_no_bit() -> None:
    unit = np.random.default_rng(0).uniform(-1e-3, 1e-3, 3).astype(np.float32)
    action = ActionBox("Hopper-v4", acpo.make_env("Hopper-v4").action_space)(unit)
    assert action.dtype == unit.dtype
    np.testing.assert_array_equal(action, unit)


def test_an_uneven_box_keeps_its_ends() -> None:
    from gymnasium.spaces import Box

    box = ActionBox("x", Box(np.array([0.0, -3.0]), np.array([4.0, 1.0]), dtype=np.float64))
    np.testing.assert_array_equal(box(np.array([-1.0, 1.0])), [0.0, 1.0])
    with pytest.raises(UserError, match="unbounded"):
        ActionBox("x", Box(-np.inf, 1.0, (2,)))


def test_other_sizes_are_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"The data has 17 observations and 6 .* has 11 and 3"):
        Evaluator("Hopper-v4", episodes=1).check("The data", 17, 6)


def test_scores_stretch_reference_returns_to_a_hundred() -> None:
    score = normalized_score("Hopper-v4", np.array([-20.272305, 3234.3]))
    np.testing.assert_allclose(score, [0.0, 100.0], atol=1e-9)  # type: ignore[arg-type]
    assert normalized_score("Pendulum-v1", np.zeros(2)) is None
    assert normalized_score(None, np.zeros(2)) is None


def test_a_policy_that_answers_in_units_acts_in_them(finished_run: Path) -> None:
    """Hopper's box is [−1, 1]: a policy whose units are half of that moves half as far."""
    policy = acpo.load_policy(finished_run)
    half = Features(action_low=(-0.5,) * 3, action_high=(0.5,) * 3)
    evaluator = Evaluator("Hopper-v4", episodes=2)
    found = evaluator([dataclasses.replace(policy, features=half)], seed=3)
    expected = evaluator([lambda s: 0.5 * policy(s)], seed=3)
    np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-4)


# --- several policies at once -------------------------------------------------------------------


def network(sizes: tuple[int, ...], seed: int, shift: float = 0.0) -> Policy:
    """Random weights; the last bias moves the actions towards one end of the box."""
    rng = np.random.default_rng(seed)
    layers = list(pairwise((*sizes[:-1], 2 * sizes[-1])))
    weights = [rng.normal(0, m**-0.5, (m, n)).astype(np.float32) for m, n in layers]
    biases = [rng.normal(0, 0.1, n).astype(np.float32) for _, n in layers]
    biases[-1] += np.float32(shift)
    mean, std = rng.normal(size=sizes[0]), rng.uniform(1, 2, sizes[0])
    statistics = (mean.astype(np.float32), std.astype(np.float32))
    actor = Mean(Network(tuple(weights), tuple(biases)))
    return Policy(actor, *statistics, info={"seed": seed})


def test_stacked_policies_act_as_each_does_alone() -> None:
    """256 wide, where a product is taken in three parts. Alone: to the last bit."""
    policies = [network((11, 256, 256, 3), seed) for seed in range(4)]
    observations = np.random.default_rng(9).normal(size=(4, 10, 11))
    joint = stacked(policies)
    assert joint is not None
    actions = joint(observations)
    for k, policy in enumerate(policies):
        alone = stacked([policy])
        assert alone is not None
        np.testing.assert_array_equal(actions[k], alone(observations[k : k + 1])[0])
        np.testing.assert_allclose(actions[k], policy(observations[k]), atol=1e-6)
    assert np.abs(actions[0] - actions[1]).max() > 0.1


@pytest.mark.parametrize(
    ("environment", "shift"),
    [
        ("Hopper-v4", 0.0),
        ("neorl2/DMSD", 0.0),
        ("neorl2/Pipeline", 0.0),
        ("neorl2/RocketRecovery", 0.0),
        ("neorl2/Simglucose", -3.0),
    ],
)
def test_a_policy_among_others_returns_what_it_does_alone(environment: str, shift: float) -> None:
    """To the last bit: a run of several seeds is to equal the runs of each."""
    task = find_task(environment)
    assert task is not None
    sizes = (task.sizes.observations, 32, task.sizes.actions)
    policies = [network(sizes, seed, shift) for seed in range(3)]
    evaluator = Evaluator(environment, episodes=3)
    together = evaluator(policies, seed=2)
    for k in (0, 2):
        alone = Evaluator(environment, episodes=3)([policies[k]], seed=2)
        np.testing.assert_array_equal(alone.returns[0], together.returns[k])
        np.testing.assert_array_equal(alone.lengths[0], together.lengths[k])
    assert len(np.unique(together.returns)) > 3


def test_alike_policies_share_one_call_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    act = Policy.unit_action

    def counted(self: Policy, observation: np.ndarray) -> np.ndarray:
        shapes.append(observation.shape)
        return act(self, observation)

    monkeypatch.setattr(Policy, "unit_action", counted)
    policies = [network((3, 8, 1), seed) for seed in range(3)]
    found = Evaluator("Pendulum-v1", episodes=2)(policies, seed=0)
    assert shapes == [(3, 2, 3)] * found.lengths.max()


def test_policies_of_other_shapes_or_units_act_beside_each_other() -> None:
    one, other = network((3, 8, 1), 0), network((3, 16, 1), 1)
    units = dataclasses.replace(one, features=Features(action_low=(-2.0,), action_high=(0.0,)))
    assert stacked([one, other]) is None
    assert stacked([one, units]) is None
    policies = [one, other, units, lambda s: 0.5 * one(s)]
    evaluator = Evaluator("Pendulum-v1", episodes=2)
    found = evaluator(policies, seed=0)
    for k, policy in enumerate(policies):
        np.testing.assert_allclose(found.returns[k], evaluator([policy], seed=0).returns[0])
    assert len(np.unique(found.returns)) == 8


def test_a_policy_is_not_asked_once_its_episodes_are_over() -> None:
    calls = [0, 0]

    def still(observations: np.ndarray) -> np.ndarray:
        calls[0] += 1
        return np.zeros((len(observations), 3))

    def bent(observations: np.ndarray) -> np.ndarray:
        calls[1] += 1
        return np.ones((len(observations), 3))

    found = Evaluator("Hopper-v4", episodes=3)([still, bent], seed=0)
    assert calls == found.lengths.max(axis=1).tolist()
    assert calls[0] != calls[1]


def test_episodes_that_round_by_their_batch_are_kept_among_their_own() -> None:
    """Fusion's networks take the product of a whole batch, whose last bits depend on its size."""
    evaluator = Evaluator("neorl2/DMSD", episodes=2)
    batch = evaluator.batched
    assert batch is not None
    sizes: list[int] = []

    class Noted(type(batch)):  # type: ignore[misc]
        elementwise = False

        def reset(self, seeds: Sequence[int]) -> np.ndarray:
            sizes.append(len(seeds))
            return super().reset(seeds)

    policies = [network((6, 8, 2), seed) for seed in range(3)]
    expected = evaluator(policies, seed=0)
    evaluator.batched = Noted()
    found = evaluator(policies, seed=0)
    assert sizes == [2, 2, 2]
    np.testing.assert_array_equal(found.returns, expected.returns)
