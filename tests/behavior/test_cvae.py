from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy.stats import norm

from acpo.behavior.cvae import CVAEDensity, CVAENet
from acpo.networks import Gaussian

ROWS, S = 6, 2
BETA = 0.2
STD = np.sqrt(BETA / 4)


def density(estimator: str = "is", latents: int = 8) -> CVAEDensity:
    return CVAEDensity(estimator, (16, 16), BETA, latents)  # type: ignore[arg-type]


def make_net(action_dim: int, seed: int = 0) -> CVAENet:
    """Random weights, large enough for the latent to matter."""
    net = density().init(jax.random.key(seed), S, action_dim)
    return jax.tree.map(lambda x: 2.0 * x, net)


def make_batch(action_dim: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS, S)).astype(np.float32)
    actions = rng.uniform(-0.8, 0.8, (ROWS, action_dim)).astype(np.float32)
    return jnp.asarray(observations), jnp.asarray(actions)


def layers(mlp: object, x: np.ndarray) -> np.ndarray:
    weights = [np.asarray(w, np.float64) for w in mlp.weights]  # type: ignore[attr-defined]
    biases = [np.asarray(b, np.float64) for b in mlp.biases]  # type: ignore[attr-defined]
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        x = np.maximum(x @ w + b, 0.0)
    return x @ weights[-1] + biases[-1]


def decoded(net: CVAENet, observation: np.ndarray, z: np.ndarray) -> np.ndarray:
    """d(s,z) of one state and many latents, by numpy."""
    states = np.broadcast_to(observation, (len(z), S))
    return np.tanh(layers(net.decoder, np.concatenate([states, z], axis=1)))


def latent_grid() -> tuple[np.ndarray, np.ndarray]:
    """Points of a plane of latents and p(z) dz at each."""
    line = np.linspace(-6, 6, 161)
    z = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    return z, norm.pdf(z).prod(axis=1) * (line[1] - line[0]) ** 2


def true_log_density(net: CVAENet, observations: Array, actions: Array) -> np.ndarray:
    """log ∫ p(a|s,z) p(z) dz for one-dimensional actions, by adding up over the plane."""
    z, mass = latent_grid()
    return np.array(
        [
            np.log(norm.pdf(a[0], decoded(net, s, z)[:, 0], STD) @ mass)
            for s, a in zip(np.asarray(observations), np.asarray(actions), strict=True)
        ]
    )


@partial(jax.jit, static_argnums=0)
def estimates(density: CVAEDensity, net: CVAENet, s: Array, a: Array, keys: Array) -> Array:
    return jax.vmap(lambda key: density.log_prob(net, s, a, key))(keys)


def mean_estimate(estimator: str, latents: int, draws: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(1), draws)
    found = estimates(density(estimator, latents), make_net(1), *make_batch(1), keys)
    return np.asarray(found).mean(axis=0)


def test_the_decoder_splits_its_first_layer_without_changing_what_it_computes() -> None:
    net, (observations, _) = make_net(1), make_batch(1)
    z = np.random.default_rng(1).normal(size=(ROWS, 5, 2)).astype(np.float32)
    found = density().decode(net, observations, jnp.asarray(z))
    by_hand = [decoded(net, s, rows) for s, rows in zip(np.asarray(observations), z, strict=True)]
    np.testing.assert_allclose(found, by_hand, atol=1e-5)


def test_the_loss_is_the_elbo_up_to_scale_and_a_constant() -> None:
    net, (s, a), key = make_net(2), make_batch(2), jax.random.key(3)
    loss = density().loss(net, s, a, key)
    # −ELBO = a_dim/(2σ²)·(MSE + β·KL) + a_dim·log σ + a_dim/2·log 2π, with σ² = β/4.
    elbo = -2 / (2 * STD**2) * float(loss) - 2 * np.log(STD) - np.log(2 * np.pi)
    assert float(density().score(net, s, a, key).mean()) == pytest.approx(elbo, rel=1e-5)


def test_both_estimates_by_hand() -> None:
    net, (s, a) = make_net(2), make_batch(2)
    q = density().encode(net, s, a)
    mean, std = np.asarray(q.mean, np.float64), np.exp(np.asarray(q.log_std, np.float64))
    z = mean[:, None] + std[:, None] * np.random.default_rng(2).normal(size=(ROWS, 5, 4))
    likelihood = np.array(
        [
            norm.logpdf(action, decoded(net, state, points), STD).sum(axis=1)
            for state, action, points in zip(np.asarray(s), np.asarray(a), z, strict=True)
        ]
    )
    divergence = 0.5 * (mean**2 + std**2 - 1 - 2 * np.log(std)).sum(axis=1)
    ratio = norm.logpdf(z).sum(-1) - norm.logpdf(z, mean[:, None], std[:, None]).sum(-1)
    by_hand = np.log(np.exp(likelihood + ratio).mean(axis=1))
    z = jnp.asarray(z, jnp.float32)
    elbo = density().elbo(net, q, s, a, z)
    np.testing.assert_allclose(elbo, likelihood.mean(axis=1) - divergence, rtol=1e-4)
    np.testing.assert_allclose(density().importance_sampled(net, q, s, a, z), by_hand, rtol=1e-4)


def test_the_elbo_stays_below_the_marginal_and_sampling_rises_to_it() -> None:
    truth = true_log_density(make_net(1), *make_batch(1))
    elbo = mean_estimate("elbo", 1, 4_000)
    one, few, many = (
        mean_estimate("is", latents, n) for latents, n in ((1, 4_000), (8, 1_000), (4_096, 20))
    )
    gap = truth.mean() - elbo.mean()
    assert gap > 0.2
    assert (elbo < truth).all()
    # With one latent the importance-sampled estimate is an ELBO, its KL estimated.
    assert one.mean() == pytest.approx(elbo.mean(), abs=0.1 * gap)
    assert elbo.mean() + 0.3 * gap < few.mean() < truth.mean()
    np.testing.assert_allclose(many, truth, atol=0.15)
    assert many.mean() == pytest.approx(truth.mean(), abs=0.03)


def test_more_latents_do_not_lift_the_elbo() -> None:
    np.testing.assert_allclose(
        mean_estimate("elbo", 16, 1_000), mean_estimate("elbo", 1, 4_000), rtol=0.03
    )


def test_samples_follow_the_marginal() -> None:
    net, (observations, _) = make_net(1), make_batch(1)
    z, mass = latent_grid()
    state = np.asarray(observations)[0]
    many = jnp.broadcast_to(observations[0], (20_000, S))
    found = np.asarray(density().sample(net, many, jax.random.key(0)))[:, 0]
    for at in (-0.6, 0.0, 0.5):
        below = norm.cdf(at, decoded(net, state, z)[:, 0], STD) @ mass
        assert np.mean(found <= at) == pytest.approx(below, abs=0.015)
    assert np.abs(found).max() <= 1.0


def test_the_encoders_log_std_is_bounded_as_in_spot() -> None:
    net, (s, a) = make_net(1), make_batch(1)
    last = net.encoder.biases[-1]
    for shift, bound in ((-100.0, -4.0), (100.0, 15.0)):
        biases = (*net.encoder.biases[:-1], last + shift)
        encoder = type(net.encoder)(net.encoder.weights, biases)
        q: Gaussian = density().encode(net._replace(encoder=encoder), s, a)
        np.testing.assert_array_equal(q.log_std, bound)
