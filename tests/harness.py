"""What tests of runs share: a tiny configuration, the real command, the comparison of two runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.testing import assert_frame_equal

from acpo.algorithms.acpo import ACPO
from acpo.behavior.config import BehaviorConfig
from acpo.files import load_arrays
from acpo.training.reporting import Reporter

SECONDS = 120.0

# The same run as flags and as Python: 30 chunks, 3 evaluations.
SETTINGS: dict[str, Any] = {"steps": 300, "log_every": 10, "eval_every": 100, "episodes": 2}
TINY = [
    *("--hidden", "16", "16", "--behavior.hidden", "16", "16"),
    *("--behavior.max-steps", "200", "--behavior.check-every", "100"),
    *(word for k, v in SETTINGS.items() for word in (f"--{k.replace('_', '-')}", str(v))),
]


def tiny_acpo(**fields: Any) -> ACPO:
    behavior = BehaviorConfig(hidden=(16, 16), max_steps=200, check_every=100)
    return ACPO(**{"hidden": (16, 16), "behavior": behavior, **fields})


class StopsAt(Reporter):
    """Presses Ctrl-C when the run reaches a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.step:
            signal.raise_signal(signal.SIGINT)


# `acpo`, but with a checkpoint after every chunk, so that a kill is always near one.
EAGER = """
import sys, acpo.cli, acpo.training.loop
acpo.training.loop.CHECKPOINT_SECONDS = 0.0
sys.exit(acpo.cli.main())
"""
# `acpo`, on a disk that takes no file above 1000 bytes.
FULL_DISK = """
import resource, sys, acpo.cli
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
sys.exit(acpo.cli.main())
"""


def _command(words: tuple[Any, ...], script: str | None) -> list[str]:
    start = ["-m", "acpo"] if script is None else ["-c", script]
    return [sys.executable, *start, *map(str, words)]


def run_acpo(
    *words: Any,
    script: str | None = None,
    cwd: Path | None = None,
    seconds: float = SECONDS,
    quick_to_compile: bool = True,
) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if quick_to_compile or k != "XLA_FLAGS"}
    return subprocess.run(
        _command(words, script), cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds
    )


def start_acpo(
    *words: Any, script: str | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command(words, script),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(happened: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Watch the run's files until something is there; the process must live to make it."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert process.poll() is None, f"ended early: {process.communicate()}"
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.001)


def checkpointed_step(run: Path) -> int:
    return max((int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.npz")), default=-1)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_run(left: Path, right: Path) -> None:
    """Metrics, returns, final state and policies are equal bit for bit."""
    for table in ("metrics.parquet", "evaluations.parquet"):
        frames = [pl.read_parquet(run / table) for run in (left, right)]
        assert len(frames[0]) > 0
        assert_frame_equal(*frames, check_exact=True)
    last = f"checkpoints/{checkpointed_step(left):09d}.npz"
    policies = [f"policies/{path.name}" for path in (left / "policies").iterdir()]
    assert policies
    for file in (last, *policies):
        (one, header), (other, other_header) = load_arrays(left / file), load_arrays(right / file)
        assert header == other_header
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], err_msg=f"{file}: {name}")
