"""What every algorithm must do, whatever it optimises."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import acpo
from acpo.algorithms import ALGORITHMS
from acpo.algorithms.base import Metrics, Spec
from acpo.behavior.config import BehaviorConfig
from acpo.data import Dataset
from acpo.data.dataset import from_arrays
from acpo.training import program
from acpo.training.prepare import Prepared, prepare

STEPS = 20
ROWS, S, A = 200, 3, 2


@cache
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    observations = rng.normal(loc=2.0, scale=3.0, size=(ROWS, S))
    return from_arrays(
        observations=observations,
        next_observations=observations + rng.normal(size=(ROWS, S)),
        actions=np.tanh(0.3 * observations[:, :A] + 0.3 * rng.normal(size=(ROWS, A))),
        rewards=rng.normal(size=ROWS),
        terminals=np.arange(ROWS) % 20 == 19,
        timeouts=np.arange(ROWS) % 10 == 9,
        name="toy",
        source="toy",
    )


def small(name: str) -> Any:
    behavior = BehaviorConfig(hidden=(8, 8), batch_size=16, max_steps=20, check_every=10)
    return replace(ALGORITHMS[name], hidden=(8, 8), batch_size=16, behavior=behavior)


@cache
def prepared(name: str) -> Prepared:
    return prepare(dataset(), small(name))


@cache
def chunk(name: str) -> Any:
    p = prepared(name)
    return program.make_chunk(p.algorithm, p.layout, STEPS)


def fresh_states(name: str, *seeds: int) -> Any:
    spec = Spec(S, A, STEPS)
    states = [prepared(name).algorithm.init(jax.random.key(seed), spec) for seed in seeds]
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def run_seeds(name: str, *seeds: int) -> tuple[Any, Metrics]:
    """`STEPS` updates from scratch, straight through the compiled chunk."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    rows = jnp.asarray(prepared(name).rows)
    found = chunk(name)(fresh_states(name, *seeds), keys, jnp.int32(0), rows)
    return jax.tree.map(np.asarray, found)


@cache
def single(name: str, seed: int) -> tuple[Any, Metrics]:
    return run_seeds(name, seed)


@cache
def trained(name: str) -> acpo.Run:
    return acpo.train(dataset(), small(name), steps=STEPS, log_every=STEPS, env="none")


def actor_of(name: str, states: Any) -> Any:
    return prepared(name).algorithm.actor(jax.tree.map(lambda x: x[0], states))


def leaves(tree: Any) -> list[tuple[str, np.ndarray]]:
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(place), np.asarray(leaf)) for place, leaf in found]


pytestmark = pytest.mark.parametrize("name", ALGORITHMS)


def test_an_update_preserves_structure_shapes_and_types(name: str) -> None:
    p = prepared(name)
    state = p.algorithm.init(jax.random.key(0), Spec(S, A, STEPS))
    batch = p.layout.unpack(jnp.asarray(p.rows[:16]))
    after, metrics = jax.eval_shape(p.algorithm.update, state, batch, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for before, now in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (now.shape, now.dtype) == (before.shape, before.dtype)
    assert metrics
    assert all(value.shape == () for value in metrics.values())


def test_states_and_metrics_are_finite(name: str) -> None:
    states, metrics = single(name, 0)
    for place, leaf in leaves(states):
        assert np.isfinite(leaf).all(), place
    for quantity, values in metrics.items():
        assert values.shape in ((1, STEPS), (1,)), quantity
        assert np.isfinite(values).all(), quantity


def test_training_moves_every_weight_matrix_of_the_actor(name: str) -> None:
    before, after = actor_of(name, fresh_states(name, 0)), actor_of(name, single(name, 0)[0])
    for old, new in zip(before.weights, after.weights, strict=True):
        assert not np.array_equal(old, new)


def test_one_seed_gives_the_same_bits_twice(name: str) -> None:
    again = run_seeds(name, 0)
    for (place, a), (_, b) in zip(leaves(single(name, 0)), leaves(again), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=place)


def test_different_seeds_differ(name: str) -> None:
    first, second = (actor_of(name, single(name, seed)[0]) for seed in (0, 1))
    for a, b in zip(first.weights, second.weights, strict=True):
        assert not np.allclose(a, b, atol=1e-3)


def test_seeds_trained_together_equal_seeds_trained_alone(name: str) -> None:
    together = run_seeds(name, 0, 1)
    for i in range(2):
        for (place, both), (_, alone) in zip(
            leaves(together), leaves(single(name, i)), strict=True
        ):
            np.testing.assert_allclose(both[i], alone[0], rtol=1e-3, atol=1e-4, err_msg=place)


def test_the_exported_policy_is_the_actors_mode(name: str) -> None:
    run = trained(name)
    assert run.algorithm == prepared(name).algorithm
    head = run.algorithm.policy_head
    observations = prepared(name).normalizer(dataset().observations)
    actor = actor_of(name, single(name, 0)[0])
    expected = head.mode(head.parameters(actor(jnp.asarray(observations))))
    np.testing.assert_allclose(run.policy(dataset().observations), expected, atol=1e-5)


def test_a_saved_policy_comes_back_the_same(name: str, tmp_path: Path) -> None:
    policy = trained(name).policy
    policy.save(tmp_path / "policy.npz")
    loaded = acpo.load_policy(tmp_path / "policy.npz")
    observations = dataset().observations
    actions = loaded(observations)
    np.testing.assert_array_equal(actions, policy(observations))
    np.testing.assert_allclose(loaded(observations[0]), actions[0], atol=1e-6)
    assert actions.shape == (ROWS, A)
    assert np.abs(actions).max() <= 1.0
    assert np.ptp(actions, axis=0).min() > 1e-3
    assert loaded.info == policy.info
