"""Networks as plain pytrees: a batched MLP and the two Gaussian heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

HeadKind = Literal["plain", "squashed"]
T = TypeVar("T")

LOG_2PI = float(np.log(2.0 * np.pi))
# Squashed densities are infinite at ±1; actions are pulled this far inside before atanh.
SQUASH_MARGIN = 1e-6
# Members of an ensemble that run at once on a CPU.
GROUP = 10
# Of the Gauss-Hermite rule for means over a Gaussian.
QUADRATURE_NODES = 16


def mish(x: Array) -> Array:
    """x tanh(log(1 + e^x)), by one exponential: tanh(log(1 + e)) = n / (n + 2), n = e (e + 2)."""
    e = jnp.exp(jnp.minimum(x, 20.0))  # from there on the factor is 1 in float32
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


class MLP(eqx.Module):
    """ReLU layers over a leading batch axis: x ↦ W_L relu(… relu(W_1 x + b_1) …) + b_L.

    Weights are stored (in, out) so that a batch is one matrix product per layer.
    `layer_norm` normalises each hidden layer before its ReLU, without learned scale; `activation`
    stands in for the ReLU.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    layer_norm: bool = eqx.field(static=True, default=False)
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.relu)

    @classmethod
    def create(
        cls,
        key: Array,
        sizes: Sequence[int],
        layer_norm: bool = False,
        activation: Callable[[Array], Array] = jax.nn.relu,
    ) -> MLP:
        """Draw weights and biases uniformly within ±1/√fan_in, as the field's codes do.

        numpy draws them, seeded by the key: JAX would compile one program per shape, which took
        longer than everything else before the first update but the update's own compilation.
        """
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

        def draw(fan_in: int, *shape: int) -> Array:
            bound = 1.0 / np.sqrt(fan_in)
            return jnp.asarray(rng.uniform(-bound, bound, shape).astype(np.float32))

        layers = [(draw(i, i, o), draw(i, o)) for i, o in pairwise(sizes)]
        weights, biases = zip(*layers, strict=True)
        return cls(weights, biases, layer_norm, activation)

    def __call__(self, x: Array, dropout: float = 0.0, key: Array | None = None) -> Array:
        """Given a key, `dropout` zeroes that share of each hidden layer and scales the rest up.

        Further axes are laid out as rows: a weight's gradient is then one product over all of them,
        which XLA computes faster on a CPU than one over several axes (docs/performance.md).
        """
        axes, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
        for i, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = x @ weight + bias
            if self.layer_norm:
                x = normalize(x)
            x = self.activation(x)
            if dropout > 0.0 and key is not None:
                x = _drop(x, dropout, jax.random.fold_in(key, i))
        x = x @ self.weights[-1] + self.biases[-1]
        return x.reshape(*axes, x.shape[-1])

    def raised(self, constant: float) -> MLP:
        """The network whose outputs are larger by a constant."""
        return eqx.tree_at(lambda net: net.biases[-1], self, self.biases[-1] + constant)


def normalize(x: Array) -> Array:
    """Each row less its mean, over its deviation.

    The means are products with a column of 1/n, which XLA computes faster on a CPU than sums
    along a row (docs/performance.md).
    """
    average = jnp.full((x.shape[-1], 1), 1.0 / x.shape[-1], x.dtype)
    x = x - x @ average
    return x * jax.lax.rsqrt((x * x) @ average + 1e-5)


def _drop(x: Array, rate: float, key: Array) -> Array:
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


class TwinQ(eqx.Module):
    """Two independent critics Q_φ1, Q_φ2; returns their values stacked on a first axis.

    Two networks and not one batched product, which was no faster on a CPU (docs/performance.md).
    """

    q1: MLP
    q2: MLP

    @classmethod
    def create(
        cls,
        key: Array,
        sizes: Sequence[int],
        layer_norm: bool = False,
        activation: Callable[[Array], Array] = jax.nn.relu,
    ) -> TwinQ:
        key1, key2 = jax.random.split(key)
        return cls(
            MLP.create(key1, sizes, layer_norm, activation),
            MLP.create(key2, sizes, layer_norm, activation),
        )

    def __call__(self, observation: Array, action: Array) -> Array:
        x = jnp.concatenate([observation, action], axis=-1)
        return jnp.stack([self.q1(x)[..., 0], self.q2(x)[..., 0]])

    def raised(self, constant: float) -> TwinQ:
        """The critics whose values are larger by a constant."""
        return TwinQ(self.q1.raised(constant), self.q2.raised(constant))


def of_members(function: Callable[..., T], *stacked: Any) -> T:
    """`function` of each member of an ensemble that is stacked on a first axis.

    On a CPU ten at a time: what more of them compute leaves the cache (docs/performance.md).
    """
    count = len(jax.tree.leaves(stacked)[0])
    if jax.default_backend() != "cpu" or count <= GROUP:
        return jax.vmap(function)(*stacked)
    return jax.lax.map(lambda member: function(*member), stacked, batch_size=GROUP)


class Gaussian(NamedTuple):
    """Parameters of a diagonal Gaussian per state, before any squashing."""

    mean: Array
    log_std: Array


def normal_log_prob(x: Array, p: Gaussian) -> Array:
    """log N(x; m, σ²), summed over the last axis."""
    z = (x - p.mean) * jnp.exp(-p.log_std)
    return jnp.sum(-0.5 * z**2 - p.log_std - 0.5 * LOG_2PI, axis=-1)


@dataclass(frozen=True)
class Head:
    """How 2·a_dim network outputs become a distribution over actions in [−1, 1].

    plain     a ~ N(tanh(m), σ²), samples clipped to the box (IQL's and InAC's head)
    squashed  a = tanh(u), u ~ N(m, σ²), density with the Jacobian of tanh (SAC's head)
    """

    kind: HeadKind = "plain"
    log_std_min: float = -5.0
    log_std_max: float = 2.0

    @classmethod
    def settled(cls, kind: str, log_std_min: float, log_std_max: float) -> Head:
        """A head from a config whose `head` is no longer "auto"."""
        if kind not in ("plain", "squashed"):
            raise ValueError(f"head {kind!r} has to be settled from data before it is used")
        return cls(kind, log_std_min, log_std_max)  # type: ignore[arg-type]

    def parameters(self, output: Array) -> Gaussian:
        """Split a network's output into the Gaussian's mean and bounded log σ."""
        mean, log_std = jnp.split(output, 2, axis=-1)
        if self.kind == "plain":
            mean = jnp.tanh(mean)
        return Gaussian(mean, jnp.clip(log_std, self.log_std_min, self.log_std_max))

    def mode(self, p: Gaussian) -> Array:
        """The deterministic action used in evaluation."""
        return p.mean if self.kind == "plain" else jnp.tanh(p.mean)

    def sample(self, p: Gaussian, noise: Array) -> Array:
        """Turn standard normal noise into an action in the box."""
        u = p.mean + jnp.exp(p.log_std) * noise
        return jnp.clip(u, -1.0, 1.0) if self.kind == "plain" else jnp.tanh(u)

    def sample_with_log_prob(self, p: Gaussian, noise: Array) -> tuple[Array, Array]:
        """A sample and log π(a|s), exact for squashed samples however close to the bounds."""
        if self.kind == "plain":
            action = self.sample(p, noise)
            return action, normal_log_prob(action, p)
        u = p.mean + jnp.exp(p.log_std) * noise
        return jnp.tanh(u), normal_log_prob(u, p) - _log_tanh_slope(u)

    def log_prob(self, p: Gaussian, action: Array) -> Array:
        """log π(a|s) of a given action."""
        u = self.unsquash(action)
        log_prob = normal_log_prob(u, p)
        return log_prob if self.kind == "plain" else log_prob - _log_tanh_slope(u)

    def typical_log_prob(self, p: Gaussian, action: Array) -> Array:
        """log π(a|s), were `action` as far from the mean as samples are in the mean.

        plain     E_{a~π}[log π(a|s)], of clipped samples
        squashed  E_u[log N(u; m, σ²)] − log |da/du| at this action

        so that log π less it says how likely an action is, by squashed heads −½ Σ (z² − 1) with
        z = (u − m)/σ, and nothing of a's units: the Jacobian alone would tell an action near its
        bounds, where little of a is much of u, from one in the middle. Dimensions are independent,
        so that one Gauss-Hermite rule along each gives the sum.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)

        def at(node: Array) -> Array:
            u = p.mean + jnp.exp(p.log_std) * node
            return normal_log_prob(jnp.clip(u, -1.0, 1.0) if self.kind == "plain" else u, p)

        values = jax.lax.map(at, jnp.asarray(nodes, p.mean.dtype))
        mean = jnp.tensordot(jnp.asarray(weights / weights.sum(), values.dtype), values, 1)
        return mean if self.kind == "plain" else mean - _log_tanh_slope(self.unsquash(action))

    def log_mass(self, p: Gaussian, action: Array, radius: float) -> Array:
        """log P(|a' − a| ≤ radius in every dimension), a' ~ π(·|s) clipped to the box.

        Where `log_prob` has no bound, at an action on its bounds, this is at most 0: such heads
        can be compared by it, whatever share of the data lies there.
        """
        low, high = action - radius, action + radius
        if self.kind == "squashed":
            low, high = (jnp.arctanh(jnp.clip(edge, -1.0, 1.0)) for edge in (low, high))
        low, high = (
            (edge - p.mean) * jnp.exp(-p.log_std)
            for edge in (
                jnp.where(action - radius <= -1.0, -jnp.inf, low),
                jnp.where(action + radius >= 1.0, jnp.inf, high),
            )
        )
        # By symmetry always in the left tail, where Φ is not 1 up to rounding.
        low, high = jnp.where(low > 0, -high, low), jnp.where(low > 0, -low, high)
        log_low, log_high = jax.scipy.special.log_ndtr(low), jax.scipy.special.log_ndtr(high)
        return jnp.sum(log_high + jnp.log1p(-jnp.exp(log_low - log_high)), axis=-1)

    def unsquash(self, action: Array) -> Array:
        """What the Gaussian is a density of: a itself, or u where a = tanh(u)."""
        if self.kind == "plain":
            return action
        return jnp.arctanh(jnp.clip(action, -1.0 + SQUASH_MARGIN, 1.0 - SQUASH_MARGIN))


def _log_tanh_slope(u: Array) -> Array:
    """Σ log(1 − tanh²u), in the form that does not underflow for large |u|."""
    return jnp.sum(2.0 * (np.log(2.0) - u - jax.nn.softplus(-2.0 * u)), axis=-1)
