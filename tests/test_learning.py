"""The dial learns: ACPO on the built-in data ends above the data and above behaviour cloning.

One seed: a check that learning works at all, not a measurement. docs/defaults.md has the spread
over seeds.
"""

from __future__ import annotations

import numpy as np
import pytest

import acpo
from acpo.evaluation.rollouts import Evaluator
from acpo.tasks import REFERENCES

STEPS = 25_000


@pytest.fixture(scope="module")
def data() -> acpo.Dataset:
    return acpo.load_dataset("builtin/hopper-mixture")


def final_score(run: acpo.Run) -> float:
    """Mean score of the last policy over thirty episodes it was not evaluated on in training."""
    returns = Evaluator("Hopper-v4", episodes=30)([run.policy], seed=77_000).returns
    return float(REFERENCES["Hopper-v4"].score(returns.mean()))


def test_acpo_ends_above_the_data_and_behaviour_cloning(data: acpo.Dataset) -> None:
    settings = {"steps": STEPS, "env": "none"}
    learned = acpo.train(data, acpo.ACPO(), **settings)
    cloned = acpo.train(data, acpo.BC(head=learned.algorithm.head), **settings)
    score, cloning = final_score(learned), final_score(cloned)
    own = float(REFERENCES["Hopper-v4"].score(data.mean_return))
    assert score > cloning, (score, cloning)
    assert score > own, (score, own)

    metrics = learned.metrics
    assert np.isfinite(metrics["critic/q"].to_numpy()).all()
    # Q stays within what the rewards allow: r_max · scale / (1 − γ).
    ceiling = data.rewards.max() * learned.facts["reward_scale"] / (1.0 - learned.algorithm.gamma)
    assert metrics["critic/q_max"].max() < 1.5 * ceiling
