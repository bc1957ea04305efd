"""What the numpy versions of methods share: networks, gradients by finite differences, Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from acpo.algorithms.base import Batch
from acpo.networks import MLP, TwinQ

ROWS, S, A = 16, 3, 2


def make_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        observations=jnp.float32(rng.normal(size=(ROWS, S))),
        actions=jnp.float32(rng.uniform(-0.9, 0.9, size=(ROWS, A))),
        rewards=jnp.float32(rng.normal(size=ROWS)),
        next_observations=jnp.float32(rng.normal(size=(ROWS, S))),
        terminals=jnp.float32(np.arange(ROWS) % 3 == 0),
    )


def doubles(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def forward(net: MLP, x: np.ndarray) -> np.ndarray:
    for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = x @ weight + bias
        if net.layer_norm:
            mean = x.mean(axis=1, keepdims=True)
            x = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + 1e-5)
        x = np.maximum(x, 0.0)
    return x @ net.weights[-1] + net.biases[-1]


def both_q(critic: TwinQ, s: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    x = np.concatenate([s, a], axis=1)
    return [forward(q, x)[:, 0] for q in (critic.q1, critic.q2)]


def numerical_gradient(loss: Callable[[Any], float], net: Any) -> Any:
    """Central differences, one parameter at a time."""
    leaves, structure = jax.tree.flatten(net)
    found = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, gradient in zip(leaves, found, strict=True):
        for i in np.ndindex(leaf.shape):
            kept = leaf[i]
            leaf[i] = kept + 1e-6
            above = loss(net)
            leaf[i] = kept - 1e-6
            below = loss(net)
            leaf[i] = kept
            gradient[i] = (above - below) / 2e-6
    return jax.tree.unflatten(structure, found)


class Adam(NamedTuple):
    """Parameters and their two moments."""

    parameters: Any
    first: Any
    second: Any
    step: int = 0

    @classmethod
    def start(cls, parameters: Any) -> Adam:
        zeros = jax.tree.map(np.zeros_like, parameters)
        return cls(parameters, zeros, zeros)

    def moved(self, loss: Callable[[Any], float], rate: float) -> Adam:
        gradient = numerical_gradient(loss, self.parameters)
        t = self.step + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.second, gradient)

        def step(p: Any, m: Any, v: Any) -> Any:
            return p - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

        return Adam(jax.tree.map(step, self.parameters, first, second), first, second, t)


def mixed(target: Any, online: Any, tau: float) -> Any:
    return jax.tree.map(lambda old, new: (1 - tau) * old + tau * new, target, online)


def gradients(optimiser: optax.OptState) -> Any:
    """What one update from a fresh optimiser took as gradients: Adam's first moment is 0.1 g."""
    return jax.tree.map(lambda m: np.asarray(m) / 0.1, optax.tree_utils.tree_get(optimiser, "mu"))


def shaken(tree: Any) -> Any:
    rng = np.random.default_rng(7)
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * rng.normal(size=np.shape(x)), jnp.float32), tree
    )


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def assert_close(found: Any, expected: Any, rtol: float = 0.0, atol: float = 1e-5) -> None:
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(f, e, rtol=rtol, atol=atol)
