"""Updates per second of d3rlpy's AWAC at our sizes; run as a script in a process of its own.

Measured without d3rlpy's logging and progress bar: sampling a batch and updating on it, no more.
"""

from __future__ import annotations

import sys
import time


def measure(threads: int, seconds: float, sizes: tuple[int, int, int]) -> float:
    import d3rlpy
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    observation_dim, action_dim, batch = sizes
    rows, episode = 100_000, 1_000
    rng = np.random.default_rng(0)
    ends = np.zeros(rows, dtype=bool)
    ends[episode - 1 :: episode] = True
    dataset = d3rlpy.dataset.MDPDataset(
        observations=rng.standard_normal((rows, observation_dim)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
        rewards=rng.standard_normal(rows).astype(np.float32),
        terminals=ends,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    # Its default encoder is 256-256 with ReLU, as ours.
    awac = d3rlpy.algos.AWACConfig(batch_size=batch).create(device="cpu")
    awac.build_with_dataset(dataset)
    for _ in range(20):
        awac.update(dataset.sample_transition_batch(batch))
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        awac.update(dataset.sample_transition_batch(batch))
        done += 1
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    from acpo.bench.speed import confine

    threads, seconds, *sizes = (float(word) for word in sys.argv[1:])
    confine(int(threads))
    shape = (int(sizes[0]), int(sizes[1]), int(sizes[2]))
    print(measure(int(threads), seconds, shape))
