"""Datasets made by SAC: every recipe, from one short real training."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import acpo
from acpo import collect
from acpo.cli import main
from acpo.data import Dataset
from acpo.errors import UserError

STEPS, ROWS = 600, 300


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset by the command, with SAC's training beside it."""
    path = tmp_path_factory.mktemp("collect") / "hopper.hdf5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "SNAPSHOT_EVERY", 200)
        patch.setattr(collect, "SNAPSHOT_EPISODES", 1)
        assert main(words(path)) == 0
    return path


def words(out: Path, environment: str = "Hopper-v4", **flags: Any) -> list[str]:
    flags = {"steps": STEPS, "rows": ROWS, "recipe": "mixture", **flags}
    pairs = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
    return ["collect", environment, "--out", str(out), *pairs]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("SAC was trained")

    monkeypatch.setattr(collect, "train_sac", refuse)


def load_made_training(made: Path) -> collect.Training:
    header = {"environment": "Hopper-v4", "steps": STEPS, "seed": 0}
    training = collect.load_training(made.with_suffix(".sac.npz"), header)
    assert training is not None
    return training


def test_the_file_names_its_environment_and_its_maker(made: Path) -> None:
    with h5py.File(made) as file:
        assert file.attrs["env"] == "Hopper-v4"
        assert "not an official D4RL file" in file.attrs["made_by"]
        assert file.attrs["recipe"] == "mixture"
    summary = json.loads(made.with_suffix(".json").read_text())
    assert list(summary["snapshots"]) == ["200", "400", "600"]
    assert summary["expert_return"] == max(summary["snapshots"].values())


@pytest.mark.parametrize("recipe", [*collect.RECIPES, "medium:0.7+expert:0.3"])
def test_every_recipe_loads_and_is_recorded_without_training_again(
    recipe: str, made: Path, no_training: None
) -> None:
    assert main(words(made, recipe=recipe)) == 0
    data = acpo.load_dataset(made)
    assert data.environment == "Hopper-v4"
    assert (data.observation_dim, data.action_dim) == (11, 3)
    with h5py.File(made) as file:
        rows = len(file["rewards"])
    if "replay" in recipe or recipe == "mixture":
        assert 0.5 * ROWS < rows <= 1.3 * ROWS
    else:
        assert rows == ROWS


@pytest.mark.parametrize("recipe", ["mixture", "medium-expert"])
def test_no_row_is_paired_across_an_episode_or_a_part(recipe: str, made: Path) -> None:
    """The loader's pairs against the next observations that the environment gave."""
    rows = collect.record("Hopper-v4", load_made_training(made), recipe, ROWS, seed=1)
    assert rows.terminals[-1] or rows.timeouts[-1]
    assert not (rows.terminals & rows.timeouts).any()
    data = paired(rows)
    kept = rows.take(~rows.timeouts)
    inner = ~kept.terminals
    assert len(data) == len(kept.rewards)
    np.testing.assert_array_equal(data.next_observations[inner], kept.next_observations[inner])


def paired(rows: collect.Rows) -> Dataset:
    from acpo.data import from_arrays

    fields = rows._asdict()
    del fields["next_observations"]
    return from_arrays(**fields, name="x", source="x")


def test_replay_is_whole_episodes_of_the_learner_s_history(made: Path) -> None:
    training = load_made_training(made)
    rows = collect.record("Hopper-v4", training, "replay", ROWS, seed=1)
    stored = {row.tobytes() for row in training.buffer.observations}
    assert all(row.tobytes() in stored for row in rows.observations)
    ends = np.flatnonzero(rows.terminals | rows.timeouts)
    # Every episode starts upright, as Hopper's resets do.
    starts = np.concatenate([[0], ends[:-1] + 1])
    assert np.abs(rows.observations[starts, 0] - 1.25).max() < 0.01


def test_the_same_seed_records_the_same_rows(made: Path) -> None:
    training = load_made_training(made)
    once = collect.record("Hopper-v4", training, "random:1+expert:1", 60, seed=5)
    again = collect.record("Hopper-v4", training, "random:1+expert:1", 60, seed=5)
    for left, right in zip(once, again, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_tiny_share_still_gets_a_row(made: Path) -> None:
    rows = collect.record("Hopper-v4", load_made_training(made), "random:0.01+medium:1", 20, seed=5)
    assert len(rows.rewards) == 21
    assert rows.timeouts[0]


def test_the_environment_gets_its_own_box_and_the_data_keeps_the_unit_one() -> None:
    """Pendulum's box is [−2, 2]."""
    actions = iter(np.linspace(-1, 1, 20, dtype=np.float32)[:, None])
    rolled = list(islice(collect._roll("Pendulum-v1", lambda s, rng: next(actions), 3), 20))
    env = acpo.make_env("Pendulum-v1")
    env.reset(seed=3)
    for _, action, reward, following, *_ in rolled:
        observation, expected, *_ = env.step(2 * action)
        assert np.abs(action).max() <= 1
        assert reward == expected
        np.testing.assert_array_equal(following, observation)


def test_a_medium_snapshot_is_the_first_a_third_of_the_way_up() -> None:
    returns = np.array([-100.0, -80.0, -60.0, 20.0, 10.0])
    empty = collect.Rows.empty(0, 1, 1)
    training = collect.Training(empty, np.arange(5), returns, None)
    assert training.snapshot("expert") == 3
    assert training.snapshot("medium") == 2


def test_another_training_is_not_reused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = made.read_bytes()
    assert main(words(made, seed=9)) == 2
    assert "holds a training with other settings" in capsys.readouterr().err
    assert made.read_bytes() == before


def test_a_truncated_training_is_named_with_its_remedy(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = made.with_suffix(".sac.npz").read_bytes()
    (tmp_path / "x.sac.npz").write_bytes(stored[: len(stored) // 2])
    assert main(words(tmp_path / "x.hdf5")) == 2
    message = capsys.readouterr().err
    assert "x.sac.npz is truncated or damaged" in message
    assert "Delete it to train again" in message


def test_a_training_without_an_episode_s_end_cannot_be_replayed() -> None:
    buffer = collect.Rows.empty(50, 3, 1)
    with pytest.raises(UserError, match="No episode ended within the 50 steps"):
        collect._spread_episodes(buffer, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "medum"}, "Recipe 'medum' is not understood at 'medum'"),
        ({"recipe": "medium:0.5+expert:-1"}, "not understood at 'expert:-1'"),
        ({"environment": "Hoper-v4"}, "'Hoper-v4' cannot be made"),
        ({"environment": "CartPole-v1"}, "only flat continuous"),
        ({"name": "x.npz"}, "must end in .hdf5"),
        ({"name": "file/x.hdf5"}, "cannot be made"),
        ({"steps": 0}, "--steps is 0"),
        ({"rows": 0}, "--rows is 0"),
    ],
)
def test_bad_words_are_refused_before_any_training(
    change: dict[str, Any],
    message: str,
    tmp_path: Path,
    no_training: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / change.pop("name", "x.hdf5")
    assert main(words(out, **change)) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("acpo: ")
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
