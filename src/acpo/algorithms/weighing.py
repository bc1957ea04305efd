"""How ACPO weighs the rows of a batch: from A and log πβ to log w_λ.

The printed weight is exp(A/α + (λ−α)/α log πβ). On real data a few rows would carry a batch by it,
most of A may be V's error, and λ would choose among states. So log πβ is taken relative to what is
typical at the state, A is bounded beside it, and log w_λ is scaled to a spread and clipped. Where
`--preset paper` turns these off (None, None, False) the printed weight is left, clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo import cci
from acpo.algorithms.base import ABOVE_0, NOT_NEGATIVE, UNIT, Algorithm, Batch, Limit, Size

QUARTILES = np.array([25.0, 50.0, 75.0])
# The quartiles of a normal distribution are this many deviations apart.
NORMAL_QUARTILES = 1.349
# More slack than this sharpens no further.
SLACK_MAX = 2.0
# However few rows there are, weights that leave this share of them are soft enough.
SOFT = 0.95


def median_and_spread(values: Array) -> tuple[Array, Array]:
    """The median, and the quartiles' distance in units of a normal's deviation.

    Not mean and deviation, since a few advantages may be far out: in Hopper those just before a
    fall.
    """
    low, middle, high = jnp.percentile(values, QUARTILES)
    return middle, jnp.maximum((high - low) / NORMAL_QUARTILES, 1e-6)


@dataclass(frozen=True)
class Weighing(Algorithm):
    """The fields and functions of w_λ."""

    limits: ClassVar[dict[str, Limit]] = {
        **Algorithm.limits,
        "alpha": ABOVE_0,
        "advantage_spread_max": ABOVE_0,
        "effective_rows": NOT_NEGATIVE,
        "weight_spread": ABOVE_0,
        "trusted_spread": ABOVE_0,
        "sharpening": NOT_NEGATIVE,
        "cloning_share": UNIT,
    }

    alpha: float = 0.1
    """α, the temperature: scale of A in the weight, and the price of entropy in V's target."""
    log_prob_clip: float = 20.0
    """|log π| is clipped here, for πθ in V's target and for πβ in the dual step and the weight."""
    advantage_spread_max: float | None = 2.0
    """A enters the weight less its median over the batch, and the spread there of A/α (the
    quartiles' distance, in units of a normal's deviation) is at most so many times that of log πβ,
    so that λ has its say also where advantages are large. None: A as it is."""
    weight_spread: float | None = 12.0
    """κ: log w_λ is taken less its median over the batch and scaled to this spread before it is
    clipped. At 12 the better two fifths of the rows count alike and the others hardly, whatever
    the tails of A are. None: log w_λ as it is."""
    trusted_spread: float = 2.0
    """The spread instead of κ where A can be trusted (`trust`): at 2 the better a row is the more
    it counts."""
    sharpening: float = 0.45
    """Every nat by which the policy is within its constraint, up to two, moves the edge of the step
    out by so many deviations of log w_λ: from the better 35 % of normal rows to 20 % and 10 %. So
    slack is spent also where λ has no more to give. 0: the edge stays."""
    cloning_share: float = 0.5
    """The share of the loss that becomes plain cloning where weights alone do not hold the policy:
    after 5,000 steps, or a quarter of the run, or later, it is farther outside its constraint than
    `rule.epsilon_margin`. It stays so to the end, and slack sharpens no more. 0: never."""
    effective_rows: int = 1_000
    """On little data both spreads and the sharpening are lowered until the weights of normal log
    w_λ have an effective sample size of so many rows per dimension of observations and actions, or
    of 0.95 of all rows. 0: they are left."""
    normalize_weights: bool = True
    """Take log πβ in the weight less what is typical of it at the state, and divide a batch's
    weights by their mean. They stand for π*_λ's normaliser, which the printed weight leaves out, so
    that λ does not also choose among states by how narrow πβ is there; nor, with a squashed head,
    among actions by how near to their bounds they are."""
    log_weight_max: float = 4.6
    """Upper clip of the weight's exponent (4.6: weights up to 100), before slack raises it."""

    def softened(self, size: Size) -> Self:
        """Itself, with spreads and sharpening that leave as many rows as the data asks for."""
        if self.weight_spread is None:
            return self
        needed = self.effective_rows * (size.observation_dim + size.action_dim)
        share = min(needed / size.rows, SOFT)

        def leaves_enough(kappa: float, sharpening: float = 0.0) -> bool:
            edge = self.log_weight_max + kappa * sharpening * SLACK_MAX
            return cci.effective_share(kappa, edge) >= share

        kappa = cci.largest(self.weight_spread, leaves_enough)
        return replace(
            self,
            weight_spread=kappa,
            trusted_spread=cci.largest(self.trusted_spread, leaves_enough),
            sharpening=cci.largest(self.sharpening, partial(leaves_enough, kappa)),
        )

    def clip(self, log_prob: Array) -> Array:
        return jnp.clip(log_prob, -self.log_prob_clip, self.log_prob_clip)

    def data_log_beta(self, batch: Batch) -> Array:
        """log πβ of the data's actions as the weight counts it."""
        typical = batch.log_beta_typical if self.normalize_weights else 0.0
        return self.clip(batch.log_beta - typical)

    def bounded(self, advantage: Array, log_beta: Array) -> Array:
        """A as it enters the weight: less its median over the batch, its spread bounded."""
        if self.advantage_spread_max is None:
            return advantage
        middle, spread = median_and_spread(advantage)
        bound = self.advantage_spread_max * self.alpha * median_and_spread(log_beta)[1]
        return jnp.minimum(bound / spread, 1.0) * (advantage - middle)

    def trust(self, advantage: Array, between: Array) -> Array:
        """The fourth power of the share of A's variance that is not V's error: within [0, 1].

        B = Q(s,a) − Q(s,ã), ã ~ πθ, compares actions of one state as A = Q(s,a) − V(s) does. V's
        error is in A alone, ã's noise in B alone, so that the share is Cov(A, B) / Var(A), with
        4 Cov(A, B) = Var(A + B) − Var(A − B) and spreads for deviations. Where it is small, the
        rows with the greatest A are not the best ones.
        """
        together, apart, alone = (
            median_and_spread(x)[1] ** 2
            for x in (advantage + between, advantage - between, advantage)
        )
        return jnp.clip((together - apart) / (4 * alone), 0.0, 1.0) ** 4

    def log_weight(
        self,
        advantage: Array,
        log_beta: Array,
        lam: Array,
        trust: Array | float = 0.0,
        slack: Array | float = 0.0,
    ) -> Array:
        """log w_λ, scaled and clipped from above before it is exponentiated.

        It is scaled to two spreads, one by which rows are but ordered and one by which they are
        weighed, and of the two clipped exponents the mean is taken, by `trust` of the second.
        `slack` moves the clip of the first.
        """
        exponent = cci.log_weight(advantage, log_beta, lam, self.alpha)
        if self.weight_spread is None:
            return jnp.minimum(exponent, self.log_weight_max)
        middle, spread = median_and_spread(exponent)
        z = (exponent - middle) / spread
        ordered = jnp.minimum(self.weight_spread * z, self.edge(slack))
        weighed = jnp.minimum(self.trusted_spread * z, self.log_weight_max)
        return ordered + trust * (weighed - ordered)

    def weight(
        self,
        advantage: Array,
        log_beta: Array,
        lam: Array,
        trust: Array | float = 0.0,
        slack: Array | float = 0.0,
        clones: Array | bool = False,
    ) -> Array:
        """w_λ, over its mean if it is normalised; where the policy `clones`, (1 − c) w_λ + c."""
        log_weight = self.log_weight(advantage, log_beta, lam, trust, slack)
        if self.normalize_weights:
            log_weight = jax.nn.log_softmax(log_weight) + np.log(len(log_weight))
        weight = jnp.exp(log_weight)
        return weight + self.cloning_share * jnp.asarray(clones) * (1.0 - weight)

    def edge(self, slack: Array | float) -> Array | float:
        """Where the exponent is clipped: slack moves that out, if there is a step to sharpen."""
        if self.weight_spread is None:
            return self.log_weight_max
        further = self.sharpening * jnp.clip(slack, 0.0, SLACK_MAX)
        return self.log_weight_max + self.weight_spread * further
