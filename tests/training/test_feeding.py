"""Data that stays on disk trains the same run as data in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import acpo
from acpo.data import store
from acpo.data.combine import apply
from acpo.data.options import DataOptions
from acpo.training.feeding import gather
from acpo.training.loop import Interrupted
from acpo.training.prepare import Normalizer, prepare
from harness import SETTINGS, StopsAt, tiny_acpo


@pytest.fixture(scope="module")
def data(hopper_file: Path) -> acpo.Dataset:
    return acpo.load_dataset(hopper_file)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_store_trains_the_same_run_as_memory(
    data: acpo.Dataset, tmp_path: Path, seeds: int
) -> None:
    store.write(tmp_path / "x.acpo", data.stream(50))
    stored = store.load(tmp_path / "x.acpo")
    settings = {**SETTINGS, "seeds": seeds}
    held = acpo.train(data, tiny_acpo(), **settings)
    fed = acpo.train(stored, tiny_acpo(), **settings, memory_gb=0, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob("rows*"))
    for one, other in zip(held.policies, fed.policies, strict=True):
        for a, b in zip(one.actor.network.weights, other.actor.network.weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_run_fed_from_disk_resumes_exactly(data: acpo.Dataset, tmp_path: Path) -> None:
    settings = {**SETTINGS, "memory_gb": 0}
    whole = acpo.train(data, tiny_acpo(), **settings)

    with pytest.raises(Interrupted):
        acpo.train(data, tiny_acpo(), **settings, out=tmp_path / "run", reporter=StopsAt(150))
    # It goes on from a checkpoint in the middle, and does not begin anew.
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    resumed = acpo.train(data, tiny_acpo(), **settings, out=tmp_path / "run", resume=True)
    for a, b in zip(
        whole.policy.actor.network.weights, resumed.policy.actor.network.weights, strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_gathering_in_disk_order_gives_the_rows_asked_for(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float32)
    rows.tofile(tmp_path / "rows.bin")
    mapped = np.memmap(tmp_path / "rows.bin", np.float32, "r").reshape(-1, 5)
    index = np.random.default_rng(1).integers(0, 1000, (7, 33))
    np.testing.assert_array_equal(gather(mapped, index), rows[index])


def test_statistics_are_of_the_training_episodes_alone(data: acpo.Dataset) -> None:
    kept = apply(data, DataOptions(validation=0.4))
    normalizer = Normalizer.fit(kept, enabled=True)
    np.testing.assert_allclose(normalizer.mean, kept.observations.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(normalizer.std, kept.observations.std(axis=0), rtol=1e-4)


def test_validation_episodes_tell_when_the_density_stops(data: acpo.Dataset) -> None:
    kept = apply(data, DataOptions(validation=0.4))
    seen: list[float] = []
    found = prepare(kept, tiny_acpo(), on_fit=lambda head, state: seen.append(state.best_log_prob))
    assert found.facts["behavior_held_out_log_prob"] in [float(value) for value in seen]
    assert len(found.rows) == len(kept)
