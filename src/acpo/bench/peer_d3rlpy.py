"""Updates per second of d3rlpy's methods at our sizes; run as a module in a process of its own.

Measured without d3rlpy's logging and progress bar: sampling a batch and updating on it, no more.
"""

from __future__ import annotations

import sys
from typing import Any

from acpo.bench.speed import ACTION_DIM, BATCH, OBSERVATION_DIM, confine, repeat


def configured(name: str) -> Any:
    """d3rlpy's method of that name at our sizes; its default encoders are 256-256 with ReLU."""
    from d3rlpy import algos
    from d3rlpy.models import VectorEncoderFactory

    from acpo.algorithms import ALGORITHMS

    if name == "bcq":
        # Else its auto-encoder is narrower, and its target compares 100 candidates: ten times ours.
        return algos.BCQConfig(
            batch_size=BATCH,
            imitator_encoder_factory=VectorEncoderFactory(list(ALGORITHMS["bcq"].vae_hidden)),
            n_action_samples=ALGORITHMS["bcq"].candidates,
        )
    kinds = {
        "awac": algos.AWACConfig,
        "td3_bc": algos.TD3PlusBCConfig,
        "iql": algos.IQLConfig,
        "cql": algos.CQLConfig,
    }
    return kinds[name](batch_size=BATCH)


def measure(name: str, threads: int, seconds: float) -> float:
    import d3rlpy
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    rows, episode = 100_000, 1_000
    rng = np.random.default_rng(0)
    ends = np.zeros(rows, dtype=bool)
    ends[episode - 1 :: episode] = True
    dataset = d3rlpy.dataset.MDPDataset(
        observations=rng.standard_normal((rows, OBSERVATION_DIM)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, ACTION_DIM)).astype(np.float32),
        rewards=rng.standard_normal(rows).astype(np.float32),
        terminals=ends,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    algorithm = configured(name).create(device="cpu")
    algorithm.build_with_dataset(dataset)

    def call() -> int:
        for _ in range(10):
            algorithm.update(dataset.sample_transition_batch(BATCH))
        return 10

    call()
    return repeat(call, seconds)


if __name__ == "__main__":
    _, name, threads, seconds = sys.argv[1:]
    confine(int(threads))
    print(measure(name, int(threads), float(seconds)))
