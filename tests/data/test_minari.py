"""Minari: datasets that Minari itself made are read as they are, and ours are read by Minari."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

from acpo.data import minari as door
from acpo.data.dataset import Dataset, from_stream
from acpo.data.features import Features
from acpo.data.pairing import Steps
from acpo.data.source import Source, from_steps
from acpo.errors import UserError
from damage import HDF5_CRASHES, read_each

minari = pytest.importorskip("minari")
from minari.data_collector.episode_buffer import EpisodeBuffer  # noqa: E402
from minari.namespace import list_local_namespaces  # noqa: E402

# Minari's advice to those who publish, and Gymnasium's that Hopper-v4 is old.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def record(environment: str, steps: int, episodes: int, dataset_id: str) -> Any:
    """Random actions in a real environment, recorded by Minari; the last episode is cut off."""
    env = minari.DataCollector(gymnasium.make(environment))
    env.action_space.seed(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        for _ in range(steps):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                break
    return env.create_dataset(dataset_id)


def buffer(length: int, end: str = "cut", **fields: Any) -> EpisodeBuffer:
    rng = np.random.default_rng(length)
    flags = np.zeros((2, length), bool)
    if end != "cut":
        flags[["terminated", "truncated"].index(end), -1] = True
    arrays: dict[str, Any] = {
        "observations": rng.normal(size=(length + 1, 3)),
        "actions": rng.uniform(-1, 1, (length, 2)),
        "rewards": rng.normal(size=length),
        "terminations": flags[0],
        "truncations": flags[1],
    }
    return EpisodeBuffer(**arrays | fields)


BOX = spaces.Box(-np.inf, np.inf, (3,))
UNIT = spaces.Box(-1.0, 1.0, (2,))


def create(
    buffers: list[EpisodeBuffer],
    observation_space: spaces.Space = BOX,
    action_space: spaces.Space = UNIT,
    dataset_id: str = "toy-v0",
) -> Any:
    return minari.create_dataset_from_buffers(
        dataset_id, buffers, observation_space=observation_space, action_space=action_space
    )


def refusal(dataset_id: str = "toy-v0") -> str:
    with pytest.raises(UserError) as caught:
        door.open_id(dataset_id).read()
    assert dataset_id in str(caught.value)
    return str(caught.value)


def small() -> Source:
    """Five episodes of ten steps, each with a terminal."""
    rng = np.random.default_rng(0)
    steps = Steps(
        rng.normal(size=(50, 3)),
        rng.uniform(-1, 1, (50, 2)),
        rng.normal(size=50),
        np.arange(50) % 10 == 9,
    )
    return from_steps(steps, "small", "small", environment="Hopper-v4")


def test_a_real_dataset_is_read_as_minari_gives_it() -> None:
    made = record("Pendulum-v1", 30, 3, "pendulum/random-v0")
    data = door.open_id("pendulum/random-v0").read()
    episodes = list(made.iterate_episodes())
    for name, parts in {
        "observations": [e.observations[:-1] for e in episodes],
        "next_observations": [e.observations[1:] for e in episodes],
        "rewards": [e.rewards for e in episodes],
    }.items():
        np.testing.assert_array_equal(
            getattr(data, name), np.concatenate(parts).astype(np.float32), err_msg=name
        )
    assert (len(data), data.num_episodes, data.terminals.sum()) == (90, 3, 0)
    assert (data.name, data.source) == ("pendulum/random-v0", "minari:pendulum/random-v0")
    assert data.environment == "Pendulum-v1"
    # Pendulum's torque goes from -2 to 2.
    actions = np.concatenate([e.actions for e in episodes])
    np.testing.assert_allclose(data.actions, actions / 2, atol=1e-6)
    assert data.features == Features(action_low=(-2.0,), action_high=(2.0,))
    np.testing.assert_allclose(data.features.to_units(data.actions), actions, atol=1e-6)


def test_actions_that_lie_in_the_unit_range_are_left_alone() -> None:
    made = record("Hopper-v4", 40, 4, "hopper-v0")
    data = door.open_id("hopper-v0").read()
    actions = np.concatenate([episode.actions for episode in made.iterate_episodes()])
    np.testing.assert_array_equal(data.actions, actions)
    assert data.features == Features()
    ended = [bool(episode.terminations[-1]) for episode in made.iterate_episodes()]
    assert any(ended)
    last = np.searchsorted(data.episode_ids, range(4), side="right") - 1
    np.testing.assert_array_equal(data.terminals[last], ended)
    np.testing.assert_allclose(data.episode_returns, [e.rewards.sum() for e in made], rtol=1e-6)


def test_an_episode_ends_with_a_terminal_or_else_is_cut() -> None:
    create([buffer(4), buffer(3, "terminated"), buffer(5, "truncated"), buffer(1)])
    (steps,) = door.open_id("toy-v0").blocks(None)
    np.testing.assert_array_equal(np.flatnonzero(steps.terminals), [6])
    np.testing.assert_array_equal(np.flatnonzero(steps.timeouts), [3, 11, 12])
    data = door.open_id("toy-v0").read()
    # Nothing is dropped, for Minari tells what followed the last step.
    np.testing.assert_array_equal(data.episode_lengths, [4, 3, 5, 1])
    assert data.environment is None


def nested(length: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    return {
        "observation": rng.normal(size=(length + 1, 2)),
        "desired_goal": rng.normal(size=(length + 1, 1)),
        "achieved_goal": {
            "pair": (rng.normal(size=(length + 1, 2, 2)), rng.normal(size=length + 1))
        },
    }


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape)


def test_nested_observations_are_flattened_in_alphabetical_order() -> None:
    space = spaces.Dict(
        observation=box(2),
        desired_goal=box(1),
        achieved_goal=spaces.Dict(pair=spaces.Tuple([box(2, 2), box()])),
    )
    create([buffer(n, observations=nested(n)) for n in (4, 6)], space)
    data = door.open_id("toy-v0").read()
    assert data.features.observations == (
        *(f"achieved_goal_pair_0_{i}" for i in range(4)),
        "achieved_goal_pair_1_0",
        "desired_goal_0",
        "observation_0",
        "observation_1",
    )
    whole = nested(6)
    expected = np.concatenate(
        [
            whole["achieved_goal"]["pair"][0].reshape(7, 4),
            whole["achieved_goal"]["pair"][1][:, None],
            whole["desired_goal"],
            whole["observation"],
        ],
        axis=1,
    ).astype(np.float32)
    np.testing.assert_array_equal(data.observations[4:], expected[:-1])
    np.testing.assert_array_equal(data.next_observations[4:], expected[1:])


def test_nested_actions_are_scaled_by_the_bounds_of_their_spaces() -> None:
    rng = np.random.default_rng(0)
    space = spaces.Dict(b=spaces.Box(-1.0, 1.0, (2,)), a=spaces.Box(0.0, 10.0, (1,)))
    actions = {"a": rng.uniform(0, 10, (6, 1)), "b": rng.uniform(-1, 1, (6, 2))}
    create([buffer(6, actions=actions)], action_space=space)
    data = door.open_id("toy-v0").read()
    assert data.features.actions == ("a_0", "b_0", "b_1")
    assert data.features.action_low == (0.0, -1.0, -1.0)
    np.testing.assert_allclose(data.actions[:, :1], actions["a"] / 5 - 1, atol=1e-6)
    np.testing.assert_allclose(data.actions[:, 1:], actions["b"], atol=1e-6)


def test_unbounded_actions_are_left_alone() -> None:
    create([buffer(6)], action_space=spaces.Box(np.array([-1, -np.inf]), np.inf, dtype=np.float64))
    assert door.open_id("toy-v0").read().features == Features()


def test_actions_outside_their_space_are_refused_with_their_place() -> None:
    actions = np.zeros((5, 2))
    actions[3, 1] = 4.5
    create([buffer(6), buffer(5, actions=actions)], action_space=spaces.Box(-4.0, 4.0, (2,)))
    message = refusal()
    assert "episode 1: number 1 of the action is 4.5 at step 3" in message
    assert "[-4, 4]" in message


@pytest.mark.parametrize(
    ("space", "observations"),
    [
        (spaces.Discrete(5), np.zeros(7, int)),
        (
            spaces.Dict(a=BOX, b=spaces.MultiBinary(2)),
            {"a": np.zeros((7, 3)), "b": np.ones((7, 2))},
        ),
        (spaces.Box(0, 255, (32, 32, 3), np.uint8), np.zeros((7, 32, 32, 3), np.uint8)),
        (spaces.Text(5), ["abc"] * 7),
    ],
)
def test_observations_that_are_no_numbers_are_refused(
    space: spaces.Space, observations: Any
) -> None:
    create([buffer(6, observations=observations)], space)
    assert "only spaces of continuous numbers" in refusal()


def test_discrete_actions_are_refused() -> None:
    create([buffer(6, actions=np.arange(6))], action_space=spaces.Discrete(6))
    assert "its actions are Discrete(6)" in refusal()


@pytest.mark.parametrize("rows", [1, 4, 7, 100])
def test_blocks_have_at_most_so_many_rows_and_change_nothing(rows: int) -> None:
    create([buffer(n) for n in (5, 1, 9, 3)])
    source = door.open_id("toy-v0")
    assert max(len(steps.rewards) for steps in source.blocks(rows)) <= rows
    assert from_stream(source.stream(rows), "x").fingerprint == source.read().fingerprint


def test_lengths_that_disagree_are_named_with_the_episode(root: Path) -> None:
    create([buffer(5), buffer(5)])
    with h5py.File(root / "toy-v0" / "data" / "main_data.hdf5", "a") as file:
        for episode, length in (("episode_0", 4), ("episode_1", 6)):
            del file[episode]["rewards"]
            file[episode]["rewards"] = np.zeros(length)
    assert "toy-v0, episode 0: 'rewards' has 4 rows but 'actions' has 5" in refusal()


def test_nothing_is_printed_and_no_warning_is_given(capfd: pytest.CaptureFixture[str]) -> None:
    create([buffer(6)], spaces.Box(-1e300, 1e300, (3,), np.float64))
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        door.open_id("toy-v0").read()
        door.write("own-v0", small().stream())
        door.open_id("own-v0").read()
    assert capfd.readouterr() == ("", "")


def test_a_dataset_that_is_not_here_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(dataset_id: str) -> None:
        warnings.warn("a newer version exists", stacklevel=1)
        print("Downloading")
        create([buffer(6)], dataset_id=dataset_id)

    monkeypatch.setattr(minari, "download_dataset", download)
    assert len(door.open_id("far/away-v0").read()) == 6
    assert capsys.readouterr().out == ""


def test_without_a_network_the_command_and_the_folder_are_named(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    def download(dataset_id: str) -> None:
        (root / dataset_id / "data").mkdir(parents=True)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(minari, "download_dataset", download)
    message = refusal("far/away-v0")
    assert "could not be downloaded (no route to host)" in message
    assert "`minari download far/away-v0`" in message
    assert str(root / "far" / "away-v0") in message
    # Half a dataset would be taken for the whole the next time.
    assert not (root / "far" / "away-v0").exists()
    with pytest.raises(UserError, match="not to be downloaded"):
        door.open_id("far/away-v0", download=False)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    for call in (lambda: door.open_id("x-v0"), lambda: door.write("x-v0", small().stream())):
        with pytest.raises(UserError, match=r"pip install 'acpo\[minari\]'"):
            call()


@pytest.mark.parametrize("name", ["hopper", "../x-v0", "a/../b-v0", "/etc/x-v0", "", "x v-v0"])
def test_a_name_that_is_no_minari_id_is_refused(name: str) -> None:
    assert "is no Minari id" in refusal(name)
    with pytest.raises(UserError, match="is no Minari id"):
        door.write(name, small().stream())


def test_minari_reads_what_we_wrote(root: Path) -> None:
    door.write("name/space/own-v3", small().stream(7))
    assert list(minari.list_local_datasets()) == ["name/space/own-v3"]
    assert list_local_namespaces() == ["name", "name/space"]
    dataset = minari.load_dataset("name/space/own-v3")
    data = small().read()
    assert (dataset.total_steps, dataset.total_episodes) == (50, 5)
    assert dataset.env_spec.id == "Hopper-v4"
    assert dataset.action_space == UNIT
    for i, episode in enumerate(dataset.iterate_episodes()):
        rows = data.episode_ids == i
        np.testing.assert_array_equal(episode.observations[:-1], data.observations[rows])
        np.testing.assert_array_equal(episode.actions, data.actions[rows])
        np.testing.assert_array_equal(episode.terminations, data.terminals[rows])
        assert episode.observations.dtype == episode.rewards.dtype == np.float32
    assert [path.name for path in root.iterdir()] == ["name"]


def test_an_environment_gymnasium_does_not_know_is_kept() -> None:
    source = small()
    stream = Source(**{**vars(source), "environment": "json:Plant-v0"}).stream()
    door.write("own-v0", stream)
    assert minari.load_dataset("own-v0").env_spec is None
    assert door.open_id("own-v0").read().environment == "json:Plant-v0"


def test_a_disk_that_is_nearly_full_is_not_filled(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    usage = namedtuple("usage", "total used free")
    free = iter([2**40, 2**40, 1_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 0, next(free)))
    with pytest.raises(UserError, match=r"Could not write minari:own-v0 .*No space left on device"):
        door.write("own-v0", small().stream())
    assert os.listdir(root) == []


def read_damaged() -> None:
    with contextlib.suppress(UserError):
        data = door.open_id("own-v0", download=False).read()
        assert isinstance(data, Dataset)
        assert len(data) == data.episodes.rows.sum()


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_damaged_bytes_give_a_dataset_or_our_error(root: Path, name: str) -> None:
    door.write("own-v0", small().stream())
    path = root / "own-v0" / "data" / name
    whole = path.read_bytes()
    rng = np.random.default_rng(0)

    def damaged() -> Iterator[bytes]:
        for _ in range(60):
            content = bytearray(whole)
            content[rng.integers(len(whole))] = rng.integers(256)
            yield bytes(content)
        yield from (whole[: rng.integers(len(whole))] for _ in range(10))

    crashes = read_each(read_damaged, path, damaged())
    assert crashes <= (HDF5_CRASHES if name == "main_data.hdf5" else 0)
    path.unlink()
    assert "own-v0" in refusal("own-v0")


@pytest.mark.parametrize("facts", [{}, {"name": 3}, [], "x", 7])
def test_a_damaged_description_is_refused(root: Path, facts: Any) -> None:
    door.write("own-v0", small().stream())
    path = root / "own-v0" / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "acpo": facts}))
    assert "the description that acpo stored in it is damaged" in refusal("own-v0")
