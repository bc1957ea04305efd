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


class Denoised(NamedTuple):
    """Of SWG: z = (a, w) by T steps back from 0, each guided by the weight ŵ that z promises.

    `acpo.algorithms.swg.SWG.act` without noise, its gradient worked out by hand: what precedes the
    weight is two residual blocks h + up-and-down(normalised h), `blocks` holding up and down of
    each in turn.
    """

    first: Any
    """[a + 1 + s, n] from z and the state to the first block."""
    times: Any
    """[T, n] what step t adds to that."""
    blocks: Network
    head: Network
    weight_head: Network
    steps: Any
    """[2, T] α_t and ᾱ_t."""
    guidance: Any
    """[3] ρ, and the range in which ŵ counts."""

    @property
    def action_dim(self) -> int:
        return self.head.biases[-1].shape[-1]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        scale, low, high = self.guidance
        from_z, from_state = np.split(self.first, [self.action_dim + 1])
        given = x @ from_state
        z = np.zeros((*x.shape[:-1], self.action_dim + 1), x.dtype)
        for t in reversed(range(len(self.times))):
            alpha, sigma = self.steps[0, t], np.sqrt(1 - self.steps[1, t])
            noise, slope = self._noise(given + z @ from_z + self.times[t])
            # ∇ log ŵ, ŵ = (w − σ ε_w) / √α
            weight = z[..., -1:] - sigma * noise[..., -1:]
            gradient = -sigma * (slope @ from_z.T)
            gradient[..., -1] += 1
            kept = (low * np.sqrt(alpha) < weight) & (weight < high * np.sqrt(alpha))
            gradient = np.where(kept, gradient / np.where(kept, weight, 1), 0)
            noise = noise - scale * sigma * gradient
            z = (z - (1 - alpha) / sigma * noise) / np.sqrt(alpha)
            z = np.concatenate([z[..., :-1].clip(-1, 1), z[..., -1:].clip(low, high)], axis=-1)
        return z[..., :-1]

    def _noise(self, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ε(h) of z, and the gradient of its last number by h."""
        weights, biases = self.blocks
        trace = []
        for i in range(0, len(weights), 2):
            deviation = np.sqrt(h.var(axis=-1, keepdims=True) + 1e-5)
            normal = (h - h.mean(axis=-1, keepdims=True)) / deviation
            y, slope = _swish(normal @ weights[i] + biases[i])
            trace.append((deviation, normal, slope))
            h = h + y @ weights[i + 1] + biases[i + 1]
            if i == 2:
                into, out = self.weight_head.weights
                y, slope = _swish(h @ into + self.weight_head.biases[0])
                weight_noise = y @ out + self.weight_head.biases[1]
                gradient = (slope * out[:, 0]) @ into.T
        for i in (2, 0):
            deviation, normal, slope = trace[i // 2]
            g = (slope * (gradient @ weights[i + 1].T)) @ weights[i].T
            along = (g * normal).mean(axis=-1, keepdims=True)
            gradient = gradient + (g - g.mean(axis=-1, keepdims=True) - along * normal) / deviation
        return np.concatenate([self.head(_swish(h)[0]), weight_noise], axis=-1), gradient


def _swish(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x σ(x), and its slope."""
    share = 0.5 * (1 + np.tanh(0.5 * x))
    return x * share, share * (1 + x * (1 - share))


ACTORS: dict[str, Any] = {
    actor.__name__: actor for actor in (Mean, Deterministic, BestOf, Denoised)
}


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
