"""Continuous Constraint Interpolation: the framework in one page.

    max_π  E[Q(s,a) − α log π(a|s)]   s.t.   E_{a~π}[log πβ(a|s)] ≥ ε              (Eq-CCI-Opt-Pro)

has the closed form π*_λ ∝ exp(Q/α) πβ^{λ/α}, and projecting it onto πθ over dataset actions gives
weighted regression with w_λ = exp(A/α + (λ−α)/α · log πβ). The dual variable λ ≥ 0 is the dial:
support constraint at 0, KL-density constraint at α, behaviour cloning far above.

Pure functions of arrays, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from tyro.conf import arg

Epsilon = float | Literal["auto"]


@dataclass(frozen=True)
class Rule:
    """How λ moves: λ₀ = lam_start, then the projected dual step at lam_rate towards ε.

    Make one with `dual` or `fixed`; a fixed λ is a dual rule that does not move.
    """

    epsilon: Annotated[Epsilon, arg(name="epsilon", prefix_name=False)] = "auto"
    """ε, the bound on E[log πβ(a|s)] under the policy. auto: the data's own mean of log πβ, on
    held-out episodes, less `epsilon_margin`."""
    epsilon_margin: float = 2.0
    """How far below the data's own mean log πβ the policy may go, where ε is not given (nats)."""
    lam_start: float | None = None
    """λ before the first step. None: α."""
    lam_rate: float = 1e-5
    """η_λ, step size of the dual update. 0 holds λ where it starts."""
    lam_waits: bool = False
    """λ stays where it starts until πθ has met its constraint once, or half the run is over: a
    policy that has not learned to act yet violates it through no fault of λ."""
    slack_steps: int = 1
    """The slack E[log πβ] − ε is a running mean over so many updates. 1: that of the batch."""


def dual(
    epsilon: Epsilon = "auto",
    start: float | None = None,
    rate: float = 1e-5,
    waits: bool = False,
    slack_steps: int = 1,
) -> Rule:
    """ACPO's rule: λ ← [λ − rate·(E[log πβ] − ε)]₊ from λ = start (α where None)."""
    return Rule(
        epsilon=epsilon,
        lam_start=start,
        lam_rate=rate,
        lam_waits=waits,
        slack_steps=slack_steps,
    )


def fixed(lam: float | None = None) -> Rule:
    """λ stays: 0 is InAC's weight, None (α) AWAC's, 100 the paper's practical wBC."""
    return Rule(lam_start=lam, lam_rate=0.0)


def log_weight(advantage: ArrayLike, log_beta: ArrayLike, lam: ArrayLike, alpha: float) -> Array:
    """log w_λ(s,a) = A(s,a)/α + (λ − α)/α · log πβ(a|s)   (Eq-CCI-Obj)."""
    return jnp.asarray(advantage) / alpha + (jnp.asarray(lam) - alpha) / alpha * log_beta


def effective_share(kappa: float, log_weight_max: float) -> float:
    """E[w]² / E[w²] of w = exp(min(κ z, log_weight_max)), z standard normal.

    The effective sample size, as a share of the rows, of weights whose logarithm has the spread κ.
    """
    z = np.linspace(-8.0, 8.0, 2001)
    p = np.exp(-0.5 * z**2)
    log_w = np.minimum(kappa * z, log_weight_max)
    w = np.exp(log_w - log_w.max())  # the share does not depend on their scale
    return float((p @ w) ** 2 / ((p @ w**2) * p.sum()))


def largest(top: float, fits: Callable[[float], bool]) -> float:
    """`top` where it fits, else the largest number below that does, down to 0.

    To two decimals, tried one by one: the effective share does not fall steadily with κ, but rises
    again where the weights' clip bites.
    """
    below = np.arange(0.0, top, 0.01).round(2)[::-1]
    return float(next((x for x in (top, *below) if fits(x)), 0.0))


def dual_step(lam: ArrayLike, slack: ArrayLike, rate: float) -> Array:
    """λ ← [λ − η_λ (E[log πβ(a|s)] − ε)]₊ with a ~ πθ(·|s)   (Eq-lambda-descend).

    `slack` is E[log πβ] − ε at actions *sampled from the policy*, not at dataset actions.
    """
    return jnp.maximum(lam - rate * jnp.asarray(slack), 0.0)


def closed_form(q: ArrayLike, log_beta: ArrayLike, lam: ArrayLike, alpha: float) -> Array:
    """π*_λ(·|s) ∝ exp(Q/α) πβ^{λ/α} over discrete actions on the last axis (Eq-CCI-ClosedForm).

    An action outside the support of πβ (log πβ = −∞) keeps probability 0 even at λ = 0.
    """
    log_beta = jnp.asarray(log_beta)
    supported = jnp.isfinite(log_beta)
    logits = (jnp.asarray(q) + lam * jnp.where(supported, log_beta, 0.0)) / alpha
    return jax.nn.softmax(jnp.where(supported, logits, -jnp.inf), axis=-1)


# The paper's "practical wBC": λ so far above α that πβ's term outweighs the advantage's.
WBC_MULTIPLE = 100.0


class Regime(NamedTuple):
    """What λ stands for up to `top`·α."""

    top: float
    name: str
    words: str


# The paper's table has the points 0 and α; what is as near to them as this is called the same.
REGIMES = (
    Regime(0.01, "support", "support constraint"),
    Regime(0.95, "support to density", "between support and density constraint"),
    Regime(1.05, "density", "KL-density constraint"),
    Regime(
        WBC_MULTIPLE, "density to wBC", "between density constraint and weighted behaviour cloning"
    ),
    Regime(float("inf"), "practical wBC", "practical weighted behaviour cloning"),
)


def regime(lam: float, alpha: float) -> str:
    """The constraint that λ stands for, in words (Tab-CCI-Lambda)."""
    return next(words for top, _, words in REGIMES if lam < top * alpha)
