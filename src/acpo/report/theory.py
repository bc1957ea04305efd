"""Pictures of the theory: g(λ), and the lower bounds beside the true return over λ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from acpo.report.figure import pyplot, save
from acpo.theory import bounds, duality
from acpo.theory.mdp import Problem, chain, soft_return
from acpo.theory.policies import constraint, optimum
from acpo.theory.statements.performance import own_loss

_MULTIPLES = np.concatenate([[0.0], np.geomspace(0.02, 100.0, 80)])
_TICKS = {0: "0\nsupport", 0.1: "0.1", 1: "1\nKL-density", 10: "10", 100: "100\nwBC"}


def draw_density(problem: Problem, out: Path) -> None:
    """g(λ) of many problems, each from its smallest to its largest value, and of one in nats."""
    plt = pyplot()
    g = np.stack([constraint(problem, problem.soft[0], m * problem.alpha) for m in _MULTIPLES])
    top = duality.largest_epsilon(problem)
    share = (g - g[0]) / (top - g[0])
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for low, high, shade in ((5, 95, 0.15), (25, 75, 0.3)):
        band = np.percentile(share, (low, high), axis=1)
        label = f"{high - low} % of {len(problem):,} problems"
        left.fill_between(_MULTIPLES, *band, color="C0", alpha=shade, lw=0, label=label)
    left.plot(_MULTIPLES, np.median(share, axis=1), color="C0", label="median")
    left.set(ylabel="(g(λ) − g(0)) / (ε_max − g(0))", ylim=(0, 1.02))

    # The one problem whose course is most like the median's.
    one = int(np.abs(share - np.median(share, axis=1, keepdims=True)).max(axis=0).argmin())
    right.plot(_MULTIPLES, g[:, one], color="C0", label="g(λ) of one problem")
    right.axhline(top[one], color="0.4", ls="--", lw=1, label="ε_max: no λ reaches it")
    epsilon = 0.5 * (g[0] + top)
    best = duality.dual_minimum(problem, problem.soft[0], epsilon)[0][one] / problem.alpha[one]
    right.plot(
        best, epsilon[one], "o", color="C1", label=f"ε = {epsilon[one]:.2f}: λ* = {best:.2f} α"
    )
    right.set(ylabel="g(λ) = E[log πβ] (nats)")
    _finish(plt, figure, out)


def draw_bounds(out: Path) -> None:
    """On a chain of four states: J(π*_λ), J(πβ), the bounds, and the printed bound's terms."""
    plt = pyplot()
    problem = _showcase()
    base = float(soft_return(problem, problem.behavior)[0])
    returns, printed, stronger = [], [], []
    terms = {"density": [], "shaping": [], "shift": []}  # type: dict[str, list[float]]
    for multiple in _MULTIPLES:
        lam = multiple * problem.alpha
        star, found = optimum(problem, lam, "own")
        if not found[0]:
            star = np.full_like(star, np.nan)
        loss = bounds.loss(problem, star, lam)
        returns.append(float(soft_return(problem, star)[0]))
        printed.append(base - float(loss.total[0]))
        stronger.append(base - float(own_loss(problem, star, lam)[0]))
        for name, values in terms.items():
            values.append(float(getattr(loss, name)[0]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    left.axhline(base, color="0.4", ls="--", lw=1, label="J(πβ)")
    left.plot(_MULTIPLES, returns, color="C0", label="J(π*_λ)")
    left.plot(_MULTIPLES, stronger, color="C2", label="bound λ E[Δg]/(1−γ)")
    left.plot(_MULTIPLES, printed, color="C3", label="Theorem 1")
    left.set(ylabel="soft return J")
    left.set_yscale("symlog", linthresh=5.0)
    ticks = [2, 0, -2, -5, -10, -20, -40]
    left.set_yticks(ticks, [f"{tick}".replace("-", "−") for tick in ticks], minor=False)
    left.minorticks_off()
    names = {
        "density": "2B|λ−α| Δ/(1−γ)",
        "shaping": "4αB Δ/(1−γ)²",
        "shift": "2γ(ε+ακ) Δ/(1−γ)²",
    }
    for colour, (name, values) in zip(("C4", "C5", "C6"), terms.items(), strict=True):
        right.plot(_MULTIPLES, values, color=colour, label=names[name])
    right.set(ylabel="loss each term allows", yscale="log")
    _finish(plt, figure, out)


def _showcase() -> Problem:
    """A chain whose behaviour turns left, away from the reward, three times in five."""
    drawn = chain(1, 4, np.random.default_rng(0))
    behavior = np.broadcast_to([0.6, 0.4], drawn.behavior.shape).astype(np.float64)
    gamma, alpha = np.array([0.8]), np.array([0.1])
    return Problem(drawn.transitions, drawn.rewards, drawn.start, gamma, alpha, behavior, behavior)


def _finish(plt: Any, figure: Any, out: Path) -> None:
    for axis in figure.axes:
        axis.set_xscale("symlog", linthresh=0.1, linscale=0.5)
        axis.set(xlabel="λ / α", xlim=(0, 100))
        axis.set_xticks(list(_TICKS), list(_TICKS.values()))
        axis.spines[["top", "right"]].set_visible(False)
        # Above the axes, where no line can run through it.
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False, "fontsize": 8}
        axis.legend(**above, ncols=2)
    figure.tight_layout()
    save(figure, out)
