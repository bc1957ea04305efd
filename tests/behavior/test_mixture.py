from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from acpo.behavior.mixture import EDGE, MixtureDensity

K, A = 3, 2
DENSITY = MixtureDensity(components=K)


def make_parameters(rows: int, action_dim: int) -> np.ndarray:
    """Some components inside the box, some beyond its edges, some narrow, some wide."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(K), size=rows)
    mean = rng.uniform(-4, 4, (rows, K * action_dim))
    log_std = rng.uniform(-1.5, 1.0, (rows, K * action_dim))
    return np.concatenate([np.log(weights), mean, log_std], axis=1).astype(np.float32)


def by_hand(parameters: np.ndarray, actions: np.ndarray) -> np.ndarray:
    rows, a_dim = actions.shape
    p = parameters.astype(np.float64)
    weights = np.exp(p[:, :K])
    mean = p[:, K : K + K * a_dim].reshape(rows, K, a_dim)
    std = np.exp(p[:, K + K * a_dim :].reshape(rows, K, a_dim))
    found = np.zeros(rows)
    for row in range(rows):
        for k in range(K):
            product = weights[row, k]
            for i, a in enumerate(actions[row].astype(np.float64)):
                law = norm(mean[row, k, i], std[row, k, i])
                edge = np.arctanh(1 - EDGE)
                if a >= 1 - EDGE:
                    product *= law.sf(edge) / EDGE
                elif a <= -1 + EDGE:
                    product *= law.cdf(-edge) / EDGE
                else:
                    product *= law.pdf(np.arctanh(a)) / (1 - a**2)
            found[row] += product
    return np.log(found)


def test_log_prob_by_hand_inside_and_on_the_bounds() -> None:
    parameters = make_parameters(8, A)
    actions = np.random.default_rng(1).uniform(-0.99, 0.99, (8, A)).astype(np.float32)
    actions[0], actions[1, 0], actions[2, 1] = (1.0, -1.0), 1.0, 1.0 - EDGE / 2
    found = DENSITY.log_prob_given(jnp.asarray(parameters), jnp.asarray(actions))
    np.testing.assert_allclose(found, by_hand(parameters, actions), rtol=1e-3, atol=1e-3)


def test_the_density_integrates_to_one() -> None:
    parameters = jnp.asarray(make_parameters(5, 1))
    # Evenly in atanh(a), and each strip at a bound as one cell.
    u = np.linspace(-np.arctanh(1 - EDGE), np.arctanh(1 - EDGE), 20_001)
    inside = np.tanh((u[1:] + u[:-1]) / 2)
    points = np.concatenate([[-1.0], inside, [1.0]])
    widths = np.concatenate([[EDGE], np.diff(np.tanh(u)), [EDGE]])
    for row in parameters:
        many = jnp.broadcast_to(row, (len(points), len(row)))
        density = np.exp(np.asarray(DENSITY.log_prob_given(many, jnp.asarray(points)[:, None])))
        assert density @ widths == pytest.approx(1.0, abs=2e-3)


def test_samples_follow_the_density_and_lie_on_the_bounds_as_often_as_it_says() -> None:
    row = np.concatenate([np.log([0.5, 0.3, 0.2]), [-0.4, 3.5, 1.0], [-1.0, 0.2, -0.5]])
    weights, mean, std = np.exp(row[:3]), row[3:6], np.exp(row[6:])
    many = jnp.broadcast_to(jnp.asarray(row, jnp.float32), (40_000, 9))
    found = np.asarray(DENSITY.sample_given(many, jax.random.key(0)))[:, 0]
    on_bound = weights @ norm.sf(np.arctanh(1 - EDGE), mean, std)
    assert on_bound > 0.1
    assert np.mean(found == 1.0) == pytest.approx(on_bound, abs=0.01)
    for at in (-0.4, 0.3, 0.9):
        below = weights @ norm.cdf(np.arctanh(at), mean, std)
        assert np.mean(found <= at) == pytest.approx(below, abs=0.01)


def test_parameters_are_weights_means_and_bounded_deviations() -> None:
    net = DENSITY.init(jax.random.key(0), 4, A)
    observations = 100.0 * jax.random.normal(jax.random.key(1), (7, 4))
    found = np.asarray(DENSITY.parameters(net, observations))
    output = np.asarray(net(observations))
    assert found.shape == (7, DENSITY.width(A)) == (7, K * (1 + 2 * A))
    np.testing.assert_allclose(np.exp(found[:, :K]).sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found[:, K : K + K * A], output[:, K : K + K * A])
    np.testing.assert_allclose(found[:, K + K * A :], output[:, K + K * A :].clip(-5, 2))
    assert (np.abs(output[:, K + K * A :]) > 2).any()


def test_the_loss_has_a_finite_gradient_on_the_bounds() -> None:
    net = DENSITY.init(jax.random.key(0), 2, A)
    actions = jnp.asarray([[1.0, -1.0], [0.0, 1.0], [1 - 1e-7, -1 + EDGE]])
    gradient = jax.grad(DENSITY.loss)(net, jnp.ones((3, 2)), actions, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
