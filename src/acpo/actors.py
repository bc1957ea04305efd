"""What a saved policy computes: networks and the ways to an action, in numpy alone.

An actor is a NamedTuple of networks and arrays. An algorithm fills it with its own arrays, the
loop cuts out a seed's, and a policy file stores them by name. It maps normalised observations
[..., s] to actions in [−1, 1], and is a function: where a method draws at random, the draws are
stored with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Network(NamedTuple):
    """ReLU layers, as `acpo.networks.MLP` without layer normalisation."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.maximum(x @ weight + bias, 0.0)
        return x @ self.weights[-1] + self.biases[-1]


class Mean(NamedTuple):
    """Of a Gaussian policy: tanh of the first half of the outputs; the second half is log σ.

    Both heads pass the mean through tanh: plain before the noise, squashed after it.
    """

    network: Network

    @property
    def action_dim(self) -> int:
        return self.network.biases[-1].shape[-1] // 2

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(self.network(x)[..., : self.action_dim])


class Deterministic(NamedTuple):
    """tanh of the outputs."""

    network: Network

    @property
    def action_dim(self) -> int:
        return self.network.biases[-1].shape[-1]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(self.network(x))


class BestOf(NamedTuple):
    """Of BCQ: the candidate that Q likes best, argmax_i Q(s, a_i + ξ(s,a_i)), a_i = d(s,z_i)."""

    decoder: Network
    perturbation: Network
    critic: Network
    latents: Any
    """[n, z] z_i, the same for every state."""
    phi: Any
    """[1] Φ, the bound of ξ."""

    @property
    def action_dim(self) -> int:
        return self.decoder.biases[-1].shape[-1]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        rows = x.reshape(-1, x.shape[-1])
        # All candidates of all rows at once would take n times the memory of the widest layer.
        blocks = [self._best(rows[i : i + 64]) for i in range(0, len(rows), 64)]
        actions = np.concatenate(blocks) if blocks else np.empty((0, self.action_dim), x.dtype)
        return actions.reshape(*x.shape[:-1], self.action_dim)

    def _best(self, x: np.ndarray) -> np.ndarray:
        states = np.repeat(x[:, None], len(self.latents), axis=1)
        latents = np.broadcast_to(self.latents, (len(x), *self.latents.shape))
        actions = np.tanh(self.decoder(np.concatenate([states, latents], axis=-1)))
        moved = self.phi * np.tanh(self.perturbation(np.concatenate([states, actions], axis=-1)))
        actions = np.clip(actions + moved, -1.0, 1.0)
        q = self.critic(np.concatenate([states, actions], axis=-1))[..., 0]
        return actions[np.arange(len(x)), q.argmax(axis=-1)]


ACTORS: dict[str, Any] = {actor.__name__: actor for actor in (Mean, Deterministic, BestOf)}


def to_arrays(actor: Any) -> dict[str, np.ndarray]:
    """An actor's arrays by name: network.weights.0, …"""
    if isinstance(actor, np.ndarray):
        return {"": actor}
    names = getattr(actor, "_fields", range(len(actor)))
    return {
        f"{name}.{rest}".rstrip("."): array
        for name, part in zip(names, actor, strict=True)
        for rest, array in to_arrays(part).items()
    }


def from_arrays(kind: type[Any], arrays: dict[str, np.ndarray]) -> Any:
    """The actor of which `to_arrays` made these."""

    def part(prefix: str) -> Any:
        if prefix in arrays:
            return arrays[prefix]
        layers = range(sum(name.startswith(f"{prefix}.weights.") for name in arrays))
        return Network(
            tuple(arrays[f"{prefix}.weights.{i}"] for i in layers),
            tuple(arrays[f"{prefix}.biases.{i}"] for i in layers),
        )

    return kind(*map(part, kind._fields))
