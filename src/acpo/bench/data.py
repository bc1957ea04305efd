"""How data larger than memory trains beside data in memory, and how fast files are read.

Everything is made here, at Hopper's sizes, in a temporary folder, and deleted. Trainings run in
processes of their own, so that each one's peak of memory is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from acpo.bench.speed import ACTION_DIM, OBSERVATION_DIM
from acpo.data.features import Features
from acpo.data.pairing import Steps
from acpo.data.source import Source

EPISODE = 1_000
IN_MEMORY_ROWS = 1_000_000
LOADING_ROUNDS = 6


def log(rows: int) -> Source:
    """A log of `rows` steps in episodes of a thousand, made as it is read."""

    def blocks(size: int | None) -> Iterator[Steps]:
        size = size or rows
        for first in range(0, rows, size):
            rng = np.random.default_rng(first)
            count = min(size, rows - first)
            states = rng.standard_normal((count + 1, OBSERVATION_DIM), dtype=np.float32)
            last = (np.arange(first, first + count) + 1) % EPISODE == 0
            yield Steps(
                states[:-1],
                rng.uniform(-1, 1, (count, ACTION_DIM)).astype(np.float32),
                rng.standard_normal(count, dtype=np.float32),
                np.zeros(count, dtype=bool),
                last,
                states[1:],
            )

    return Source("bench", "bench", blocks, features=Features())


def train_store(path: str, steps: str, memory_gb: str) -> dict[str, float]:
    """Train on a store; updates per second once compiled, and the process's peak of memory."""
    import resource

    from acpo.algorithms.acpo import ACPO
    from acpo.behavior.config import BehaviorConfig
    from acpo.data import store
    from acpo.training.loop import train
    from acpo.training.reporting import Reporter

    class Clock(Reporter):
        marks: list[tuple[int, float]] = []  # noqa: RUF012

        def progress(self, step: int, metrics: dict[str, float]) -> None:
            self.marks.append((step, time.perf_counter()))

    clock = Clock()
    # πβ's fit takes the same time whatever the data's size; it is cut short.
    algorithm = ACPO(head="squashed", behavior=BehaviorConfig(max_steps=500, check_every=500))
    train(
        store.load(Path(path)),
        algorithm,
        steps=int(steps),
        env="none",
        memory_gb=float(memory_gb),
        out=Path(path).with_name(f"run-{time.time_ns()}"),
        reporter=clock,
    )
    (first, began), *_, (last, ended) = clock.marks
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"updates_per_s": (last - first) / (ended - began), "peak_mb": peak}


def _apart(*words: str) -> dict[str, float]:
    command = [sys.executable, "-m", "acpo.bench.data", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _best(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each call, taking turns; the best round counts."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken = time.perf_counter() - start
            best[name] = min(taken, best.get(name, taken))
    return best


def measure_training(
    rows: int, folder: Path, steps: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    from acpo.data import store

    large, small = folder / "large.acpo", folder / "small.acpo"
    start = time.perf_counter()
    store.write(large, log(rows).stream())
    say(f"wrote {rows:,} rows in {time.perf_counter() - start:.0f} s")
    store.write(small, log(min(rows, IN_MEMORY_ROWS)).stream())
    os.sync()  # what was written must not be on its way to the disk while something is timed
    memory, disk = [], []
    for number in range(rounds):
        memory.append(_apart(str(small), str(steps), "1000"))
        disk.append(_apart(str(large), str(steps), "0"))
        say(f"round {number + 1}: in memory {memory[-1]}, from disk {disk[-1]}")
    rates = [max(run["updates_per_s"] for run in runs) for runs in (memory, disk)]
    return {
        "rows": rows,
        "steps": steps,
        "rounds": rounds,
        "in_memory_updates_per_s": rates[0],
        "from_disk_updates_per_s": rates[1],
        "share_of_in_memory": rates[1] / rates[0],
        "from_disk_peak_mb": max(run["peak_mb"] for run in disk),
    }


def measure_loading(rows: int, folder: Path, rounds: int = LOADING_ROUNDS) -> dict[str, Any]:
    """Seconds to load D4RL's HDF5 and a CSV, beside the libraries that read them."""
    import h5py
    import polars as pl

    from acpo.data import d4rl, tables
    from acpo.data.options import DataOptions

    hdf5, csv = folder / "rows.hdf5", folder / "rows.csv"
    d4rl.write(hdf5, log(rows).stream())
    steps = next(iter(log(rows).blocks(None)))
    columns = {f"obs_{i}": steps.observations[:, i] for i in range(OBSERVATION_DIM)}
    columns |= {f"action_{i}": steps.actions[:, i] for i in range(ACTION_DIM)}
    columns |= {"reward": steps.rewards, "timeout": steps.timeouts.astype(np.int8)}
    pl.DataFrame(columns).write_csv(csv)
    os.sync()  # as in `measure_training`

    def by_h5py() -> None:
        with h5py.File(hdf5) as file:
            for name in Steps._fields:
                file[name][()]

    seconds = _best(
        {
            "h5py": by_h5py,
            "hdf5": lambda: d4rl.load(hdf5),
            "polars": lambda: pl.read_csv(csv),
            "csv": lambda: tables.open_file(csv, DataOptions(), hold=True).read(),
        },
        rounds,
    )
    return {
        "rows": rows,
        "seconds": seconds,
        "hdf5_to_h5py": seconds["hdf5"] / seconds["h5py"],
        "csv_to_polars": seconds["csv"] / seconds["polars"],
    }


if __name__ == "__main__":
    print(json.dumps(train_store(*sys.argv[1:4])))
