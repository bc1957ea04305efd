"""Means over few seeds, with an interval that does not pretend there were many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A mean over seeds, the deviation over seeds, and a 95 % bootstrap interval of the mean."""

    mean: float
    std: float
    low: float
    high: float


def estimate(results: np.ndarray, seed: int = 0) -> Estimate:
    """Of results [seeds, episodes]: seeds are drawn with replacement, then episodes of each.

    Episodes of one seed share its policy, so they are not independent results: the seeds are
    the outer draw.
    """
    seeds, episodes = results.shape
    rng = np.random.default_rng(seed)
    chosen = rng.integers(seeds, size=(RESAMPLES, seeds, 1))
    within = rng.integers(episodes, size=(RESAMPLES, seeds, episodes))
    means = results[chosen, within].mean(axis=(1, 2))
    low, high = np.percentile(means, [2.5, 97.5])
    per_seed = results.mean(axis=1)
    return Estimate(float(per_seed.mean()), float(per_seed.std()), float(low), float(high))
