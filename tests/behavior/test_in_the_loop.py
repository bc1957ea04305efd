"""Densities other than the Gaussian inside training: annotations, ε, and the dual step."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo import cci
from acpo.algorithms.base import Batch, Spec
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.density import Exact
from acpo.data.dataset import Dataset, from_arrays
from acpo.training import program
from acpo.training.prepare import Prepared, prepare
from harness import tiny_acpo

ROWS, S, A, STEPS = 240, 3, 2, 8
OTHERS = ("cvae-is", "mixture")


@cache
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS, S))
    return from_arrays(
        observations=observations,
        actions=np.tanh(observations[:, :A] + 0.3 * rng.normal(size=(ROWS, A))),
        rewards=rng.normal(size=ROWS),
        terminals=np.zeros(ROWS, bool),
        timeouts=np.arange(ROWS) % 10 == 9,
        name="toy",
        source="toy",
    )


@cache
def prepared(model: str) -> Prepared:
    own = {"every": 2} if model.startswith("cvae") else {}
    behavior = BehaviorConfig(model=model, hidden=(8, 8), max_steps=20, check_every=20, **own)  # type: ignore[arg-type]
    fields: dict[str, Any] = {"head": "squashed", "batch_size": 16, "hidden": (8, 8)}
    return prepare(dataset(), tiny_acpo(**fields, rule=cci.dual(), behavior=behavior))


def batch_of(p: Prepared) -> Batch:
    return p.layout.unpack(jnp.asarray(p.rows[:16]))


@cache
def run(model: str, *seeds: int) -> Any:
    p = prepared(model)
    states, keys = program.init(p.algorithm, Spec(S, A, STEPS), jnp.asarray(seeds))
    chunk = program.make_chunk(p.algorithm, p.layout, STEPS)
    return jax.device_get(chunk(states, keys, jnp.int32(0), jnp.asarray(p.rows)))


@pytest.mark.parametrize("model", OTHERS)
def test_rows_carry_log_beta_and_what_the_loop_needs(model: str) -> None:
    p = prepared(model)
    batch, density = batch_of(p), p.algorithm.density
    if isinstance(density, Exact):
        assert p.layout.network is None
        again = density.log_prob_given(batch.behavior, batch.actions)
        np.testing.assert_allclose(batch.log_beta, again, atol=1e-4)
    else:
        assert p.rows.shape[1] == 2 * S + A + 4
        keys = [jax.random.fold_in(jax.random.key(0), row) for row in range(16)]
        again = [
            density.log_prob(batch.behavior, s[None], a[None], key)[0]
            for s, a, key in zip(batch.observations, batch.actions, keys, strict=True)
        ]
        np.testing.assert_allclose(batch.log_beta, again, atol=1e-4)


@pytest.mark.parametrize("model", OTHERS)
def test_epsilon_lies_below_the_held_out_mean_of_the_same_estimator(model: str) -> None:
    p = prepared(model)
    held = dataset().split(0.1, 0)[1]
    log_beta = p.rows[held, -2].mean()
    # The estimate of a row depends on its latents, and the held-out mean drew others.
    assert p.facts["behavior_held_out_log_prob"] == pytest.approx(log_beta, abs=0.15)
    below = p.facts["behavior_held_out_log_prob"] - p.algorithm.epsilon
    assert below == pytest.approx(p.algorithm.rule.epsilon_margin, abs=1e-4)


@pytest.mark.parametrize("model", OTHERS)
def test_the_dual_step_asks_the_density_about_the_policys_own_actions(model: str) -> None:
    p = prepared(model)
    algorithm, batch, key = p.algorithm, batch_of(p), jax.random.key(5)
    state = algorithm.init(jax.random.key(0), Spec(S, A, STEPS))
    head = algorithm.policy_head
    policy = head.parameters(state.trained.actor(batch.observations))
    actions = head.sample(policy, jax.random.normal(key, (16, A)))
    density = algorithm.density
    if isinstance(density, Exact):
        log_beta = density.log_prob_given(batch.behavior, actions)
    else:
        drawn = jax.random.fold_in(key, 1)
        some = batch.observations[::2], actions[::2]
        log_beta = density.log_prob(batch.behavior, *some, drawn)
    after, metrics = jax.jit(algorithm.update)(state, batch, key)
    expected = float(np.clip(log_beta, -20, 20).mean())
    assert float(metrics["dial/constraint"]) == pytest.approx(expected, abs=1e-3)
    rate = algorithm.rule.lam_rate
    lam = 0.1 - rate * (expected - algorithm.epsilon)
    assert float(after.lam) == pytest.approx(lam, abs=1e-7)


# Of an exact density the loop sees rows alone, as of the Gaussian, which the conformance test has.
@pytest.mark.parametrize("model", ["cvae-is"])
def test_seeds_share_the_density_and_equal_seeds_alone(model: str) -> None:
    together, alone = run(model, 0, 1), run(model, 1)
    pairs = zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True)
    for both, one in pairs:
        assert np.isfinite(both).all()
        np.testing.assert_allclose(both[1], one[0], rtol=1e-3, atol=1e-4)


def test_an_open_head_is_settled_by_gaussian_trials() -> None:
    behavior = BehaviorConfig(model="mixture", hidden=(8, 8), max_steps=20, check_every=20)
    seen: list[str] = []
    found = prepare(
        dataset(), tiny_acpo(behavior=behavior), on_fit=lambda family, state: seen.append(family)
    )
    assert seen == ["plain", "squashed", "mixture"]
    assert found.algorithm.head in ("plain", "squashed")
