"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Compile each program once and quickly: a tiny run takes an instant beside its compilation.

    Set before JAX is imported, and inherited by the commands that tests start.
    """
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is not None:
        folder = cache.mkdir("jax")
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that they run beside the others and not after them."""
    longest = ("test_learning.py", "test_conformance.py", "test_resume.py")
    items.sort(key=lambda item: item.path.name not in longest)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real datasets; the test is skipped where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("ACPO_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real datasets at {folder}; set ACPO_TEST_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def hopper_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few short episodes of uniform actions in the real Hopper-v4, in D4RL's layout."""
    from acpo import collect
    from acpo.data import d4rl

    rows = collect._record("Hopper-v4", partial(collect._uniform, 3), 400, seed=7, action_dim=3)
    fields = rows._asdict()
    del fields["next_observations"]
    path = tmp_path_factory.mktemp("data") / "hopper.hdf5"
    d4rl.save(path, **fields, attrs={"env": "Hopper-v4"})
    return path


@pytest.fixture(scope="session")
def finished_run(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny run by the real command, never interrupted. Not to be changed."""
    from harness import TINY, run_acpo

    out = tmp_path_factory.mktemp("finished") / "run"
    done = run_acpo("train", hopper_file, *TINY, "--out", out)
    assert done.returncode == 0, done.stderr
    return out
