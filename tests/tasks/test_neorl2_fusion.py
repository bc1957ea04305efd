"""Fusion, and the authors' own environments: what needs a checkout of their source says so."""

from __future__ import annotations

import importlib.util
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from acpo.errors import UserError
from acpo.tasks.neorl2 import fusion
from acpo.tasks.neorl2.authors import authors_env, checkout, tensors

HERE = importlib.util.find_spec("neorl2") is not None
absent = pytest.mark.skipif(HERE, reason="NeoRL2's source is importable")
present = pytest.mark.skipif(
    not HERE, reason="NeoRL2's source is not importable: put a checkout on PYTHONPATH"
)

TOY = """
import random
import numpy as np
import gymnasium


class Toy(gymnasium.Env):
    def __init__(self, scale):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.scale, self.steps = scale * np.random.random(), 0

    def reset(self, seed=None, options=None):
        return np.array([random.random(), self.scale]), {}

    def step(self, action):
        self.steps += 1
        return np.array([np.random.random(), 7.0 * self.steps]), np.array([2.0]), False, False, {}
"""


@pytest.fixture
def toy_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the authors' name and layout: a task that draws globally, and a broken one."""
    for name in [name for name in sys.modules if name.split(".")[0] == "neorl2"]:
        monkeypatch.delitem(sys.modules, name)
    known = dict(gymnasium.registry)
    folder = tmp_path / "neorl2"
    (folder / "envs").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from gymnasium.envs.registration import register\n"
        "register('Toy', 'neorl2.envs.toy:Toy', max_episode_steps=3, kwargs={'scale': 5.0})\n"
        "register('Broken', 'neorl2.envs.broken:Broken', max_episode_steps=3)\n"
        "register('Cut', 'neorl2.envs.cut:Cut', max_episode_steps=3)\n"
    )
    (folder / "envs" / "toy.py").write_text(TOY)
    (folder / "envs" / "broken.py").write_text("import a_package_that_nobody_has\n")
    (folder / "envs" / "cut.py").write_text("from neorl2.envs.reward import cut\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "neorl2"]:
        del sys.modules[name]
    gymnasium.registry.clear()
    gymnasium.registry.update(known)


@absent
@pytest.mark.parametrize("make", [fusion.make_fusion, lambda: authors_env("DMSD")])
def test_without_the_source_the_user_reads_how_to_get_it(make: Callable[[], gymnasium.Env]) -> None:
    with pytest.raises(UserError, match=r"git clone .*polixir/NeoRL2.* PYTHONPATH"):
        make()


def test_a_package_without_its_parts_is_named(toy_source: Path) -> None:
    assert checkout() == toy_source
    with pytest.raises(UserError, match="has no envs/data/fusion_lstm/weights"):
        fusion.make_fusion()
    with pytest.raises(UserError, match=r"has no neorl2\.envs\.reward.*PyPI"):
        authors_env("Cut")


def test_a_missing_package_is_named(toy_source: Path) -> None:
    with pytest.raises(UserError, match="needs the package 'a_package_that_nobody_has'"):
        authors_env("Broken")


def test_an_unknown_task_is_refused(toy_source: Path) -> None:
    with pytest.raises(UserError, match="no task 'DSMD'; it has Broken, Cut, Toy"):
        authors_env("DSMD")


def test_authors_env_mends_seeding_types_and_horizon(toy_source: Path) -> None:
    env = authors_env("Toy")

    def episode(seed: int) -> list[np.ndarray]:
        start = env.reset(seed=seed)[0]
        steps = [env.step(np.zeros(1, np.float32)) for _ in range(3)]
        assert [step[1:4] for step in steps] == [(2.0, False, False)] * 2 + [(2.0, False, True)]
        return [start, *(step[0] for step in steps)]

    first = episode(4)
    random.seed(1)
    np.random.seed(1)
    before = random.getstate()
    np.testing.assert_array_equal(episode(4), first)
    assert random.getstate() == before
    assert np.random.random() == np.random.RandomState(1).random()
    assert not np.array_equal(episode(5), first)
    assert first[0].dtype == np.float32
    assert all(observation in env.observation_space for observation in first)
    np.testing.assert_array_equal([row[1] for row in first[1:]], [7.0, 14.0, 21.0])


def _message(number: int, content: bytes | int) -> bytes:
    """A field of a protobuf message."""

    def varint(value: int) -> bytes:
        low, high = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + varint(high) if high else bytes([low])

    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_weights_are_read_from_onnx(tmp_path: Path) -> None:
    numbers = np.arange(300, dtype=np.float32).reshape(150, 2)
    matrix = _message(1, 150) + _message(1, 2) + _message(2, 1) + _message(8, b"kernel")
    matrix += _message(9, numbers.tobytes())
    scalar = _message(2, 1) + _message(8, b"scalar") + _message(9, bytes(4))
    whole = _message(1, 1) + _message(2, 7) + _message(8, b"whole") + _message(9, bytes(8))
    graph = b"".join(_message(5, tensor) for tensor in (matrix, scalar, whole))
    path = tmp_path / "model.onnx"
    path.write_bytes(_message(1, 8) + _message(7, _message(2, b"graph") + graph))
    (found,) = tensors(path).items()
    assert found[0] == "kernel"
    np.testing.assert_array_equal(found[1], numbers)


def _plasma(inputs: int = 6, width: int = 3, outputs: int = 4) -> fusion._Plasma:
    """A random model."""
    generator = np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    def norm(size: int) -> fusion._Norm:
        return fusion._Norm(draw(size), draw(size))

    def cell(size: int) -> fusion._Cell:
        return fusion._Cell(draw(size, 4 * width), draw(width, 4 * width), draw(4 * width))

    dense = fusion._Dense([norm(width)], [draw(width, outputs)], [draw(outputs)])
    return fusion._Plasma(norm(inputs), cell(inputs), norm(width), cell(width), dense)


def _lstm(cell: fusion._Cell, rows: np.ndarray) -> np.ndarray:
    """All hidden states of one window [rows, N, inputs], one row after another."""
    h = c = np.zeros((rows.shape[1], len(cell.recurrent)))
    hidden = []
    for row in rows:
        gates = row @ cell.kernel + h @ cell.recurrent + cell.bias
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        hidden.append(h)
    return np.array(hidden)


def test_windows_under_way_answer_like_each_window_alone() -> None:
    model = _plasma()
    advance = jax.jit(lambda memory, row: model(memory, row))
    rows = np.random.default_rng(0).normal(size=(13, 2, 6)).astype(np.float32)
    (memory,) = fusion._begin([model], rows[0])
    padded = np.concatenate([np.repeat(rows[:1], 9, axis=0), rows[1:]])
    for t in range(1, 13):
        answer, memory = advance(memory, rows[t])
        window = padded[t - 1 : t + 9] * model.enter.scale + model.enter.shift
        hidden = _lstm(model.lower, window) * model.climb.scale + model.climb.shift
        (norm,), (kernel,), (bias,) = model.leave
        last = _lstm(model.upper, hidden)[-1] * norm.scale + norm.shift
        np.testing.assert_allclose(answer, last @ kernel + bias, rtol=2e-4, atol=2e-5)


def test_reward_by_hand() -> None:
    here, there = np.zeros(15, np.float32), np.zeros(15, np.float32)
    here[9:12] = 1.6, 5.0, 0.95
    there[6:9] = 1.8, 5.5, 0.90  # one tolerance off in each: −log 1
    assert fusion.reward(here, there) == pytest.approx(0.0, abs=1e-5)
    there[6:9] = 1.6 + 0.2 * np.e, 5.0 + 0.5 * np.e, 0.95 - 0.05 * np.e
    assert fusion.reward(here, there) == pytest.approx(-1.0, abs=1e-5)


def test_reward_of_every_recorded_row(shared_data: Path) -> None:
    with np.load(shared_data / "neorl2" / "Fusion-val.npz") as rows:
        rewards = fusion.reward(rows["obs"], rows["next_obs"])
        np.testing.assert_allclose(rewards, rows["reward"], rtol=0, atol=1e-6)
        assert not rows["done"].any()
        np.testing.assert_array_equal(np.flatnonzero(rows["truncated"]) % 100, 99)


@present
def test_fusion_replays_recorded_episodes_from_their_seeds(shared_data: Path) -> None:
    # Not from recorded states: the last ten rows are no part of an observation.
    with np.load(shared_data / "neorl2" / "Fusion-val.npz") as archive:
        rows = {key: archive[key].reshape(200, 100, -1)[:4] for key in archive.files}
    batch = fusion.Fusion()
    np.testing.assert_allclose(batch.reset(range(4)), rows["obs"][:, 0], rtol=0, atol=1e-5)
    for t in range(5):
        steps = batch.step(rows["action"][:, t])
        np.testing.assert_allclose(steps.observations, rows["next_obs"][:, t], rtol=0, atol=1e-5)
        np.testing.assert_allclose(steps.rewards, rows["reward"][:, t, 0], rtol=0, atol=1e-3)


@present
def test_fusion_passes_gymnasiums_check_and_repeats_itself() -> None:
    env = gymnasium.make(EnvSpec("acpo/Fusion-v0", entry_point=fusion.make_fusion)).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    action = np.full(6, 0.3, np.float32)
    env.reset(seed=3)
    alone = env.step(action)[0]
    batch = fusion.Fusion()
    batch.reset([5, 3])
    np.testing.assert_allclose(
        batch.step(np.stack([action, action])).observations[1], alone, rtol=0, atol=1e-5
    )


@present
@pytest.mark.parametrize("task", ["DMSD", "Pipeline", "Simglucose"])
def test_authors_env_repeats_an_episode(task: str) -> None:
    try:
        env = authors_env(task)
    except UserError as error:
        pytest.skip(str(error))
    size = env.action_space.shape[0]
    actions = np.random.default_rng(0).uniform(-1, 1, (2, size)).astype(np.float32)

    def episode() -> np.ndarray:
        return np.array([env.reset(seed=7)[0], *(env.step(action)[0] for action in actions)])

    np.testing.assert_array_equal(episode(), episode())


@present
def test_fusion_equals_the_authors_source() -> None:
    try:
        theirs = authors_env("Fusion")
    except UserError as error:
        pytest.skip(str(error))
    ours = fusion.make_fusion()
    np.testing.assert_allclose(ours.reset(seed=11)[0], theirs.reset(seed=11)[0], atol=1e-5)
    for action in np.random.default_rng(0).uniform(-1, 1, (2, 6)).astype(np.float32):
        one, other = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(one[0], other[0], rtol=0, atol=1e-5)
        assert one[1] == pytest.approx(other[1], abs=1e-3)
