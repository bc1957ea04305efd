"""Does πβ tell dataset actions from others? The paper's test of a behaviour density.

Actions out of the dataset's distribution are made from its own, a + ξz with z ~ N(0, I), put
back into the action box, as a policy's actions always are. A density worth constraining a policy
with gives them clearly less likelihood than it gives the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

# A threshold on log πβ that lets this share of dataset actions pass is what others are held to.
DATA_PASSING = 0.9
# So many more perturbed actions may pass than with the strictest of the models compared.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Perturbed:
    """What a density says of actions at one ξ."""

    xi: float
    log_prob: Floats
    auroc: float
    """P(log πβ(a|s) > log πβ(a + ξz|s)), a tie counting half: 1 separates, ½ cannot tell."""
    passing: float
    """Share above the threshold that 90 % of dataset actions pass: taken for data."""


@dataclass(frozen=True)
class Separation:
    """What one density says of held-out dataset actions and of the same actions perturbed."""

    model: str
    log_prob: Floats
    perturbed: tuple[Perturbed, ...]


def perturb(actions: Floats, xi: float, seed: int) -> Floats:
    """a + ξz, clipped to the box. The same z whatever ξ and model, so that these compare."""
    z = np.random.default_rng(seed).standard_normal(actions.shape)
    return np.clip(actions + xi * z, -1.0, 1.0).astype(np.float32)


def separate(
    model: str,
    log_prob: Callable[[Floats], Floats],
    actions: Floats,
    xis: Sequence[float],
    seed: int,
) -> Separation:
    """Ask a density, `log_prob` at the actions' states, for all ξ."""
    inside = log_prob(actions)
    threshold = np.quantile(inside, 1.0 - DATA_PASSING)
    found = []
    for xi in xis:
        outside = log_prob(perturb(actions, xi, seed))
        passing = float(np.mean(outside >= threshold))
        found.append(Perturbed(xi, outside, auroc(inside, outside), passing))
    return Separation(model, inside, tuple(found))


def auroc(positive: Floats, negative: Floats) -> float:
    """P(positive > negative) + ½ P(equal), over all pairs."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left")
    below_or_equal = np.searchsorted(ordered, positive, "right")
    return float((below + below_or_equal).mean() / (2 * len(negative)))


@dataclass(frozen=True)
class Verdict:
    """Whether a density gives actions out of distribution too much likelihood."""

    model: str
    too_much: bool
    because: str


def judge(found: Sequence[Separation]) -> list[Verdict]:
    """Compare the models at every ξ with the one under which the fewest perturbed actions pass.

    Too much: more than half pass at the largest ξ, or at some ξ clearly more than elsewhere.
    """
    return [_judge(one, found) for one in found]


def _judge(one: Separation, found: Sequence[Separation]) -> Verdict:
    farthest = max(one.perturbed, key=lambda p: p.xi)
    if farthest.passing > 0.5:
        because = f"even at ξ = {farthest.xi:g}, {farthest.passing:.0%} of perturbed actions pass"
        return Verdict(one.model, True, f"{because} for data (AUROC {farthest.auroc:.2f})")

    def strictest(i: int) -> Separation:
        return min(found, key=lambda other: other.perturbed[i].passing)

    def excess(i: int) -> float:
        return one.perturbed[i].passing - strictest(i).perturbed[i].passing

    worst = max(range(len(one.perturbed)), key=excess)
    at, best = one.perturbed[worst], strictest(worst)
    because = (
        f"at ξ = {at.xi:g}, {at.passing:.0%} of perturbed actions pass for data "
        f"(AUROC {at.auroc:.2f})"
    )
    if best.model != one.model:
        because += f", against {best.perturbed[worst].passing:.0%} with {best.model}"
    return Verdict(one.model, excess(worst) > TOLERANCE, because)
