"""NeoRL2's own source, where the user has a checkout of it: its environments and its weights."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from acpo.errors import UserError

_REMEDY = (
    "Fetch a source checkout (git clone https://github.com/polixir/NeoRL2) and put its folder on "
    "PYTHONPATH; the package on PyPI lacks a part of the source."
)


def checkout(part: str = "") -> Path:
    """A folder of the authors' package.

    Raises:
        UserError: if the package is not importable or lacks that folder.
    """
    spec = importlib.util.find_spec("neorl2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"NeoRL2's source is needed here, and is not importable. {_REMEDY}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / part).is_dir():
        raise UserError(f"NeoRL2's source at {folder} has no {part}. {_REMEDY}")
    return folder / part


def authors_env(task: str) -> AuthorsEnv:
    """The authors' environment of a task, such as DMSD.

    Its RandomFrictionHopper has, with MuJoCo 3.5 and later, other contacts than their data; see
    `random_friction_hopper` for the reason, and for one that has theirs.

    Raises:
        UserError: if their source, or a package that it needs, is not importable, or it has no
            such task.
    """
    checkout()
    with _imports(task):
        importlib.import_module("neorl2")  # registers its tasks with Gymnasium
        specs = {
            name: spec
            for name, spec in gymnasium.registry.items()
            if str(spec.entry_point).startswith("neorl2.")
        }
        if task not in specs:
            raise UserError(f"NeoRL2 has no task {task!r}; it has {', '.join(sorted(specs))}.")
        module, _, name = str(specs[task].entry_point).partition(":")
        kind = getattr(importlib.import_module(module), name)
    if task == "Simglucose":
        _mend_patients()
    horizon = specs[task].max_episode_steps
    assert horizon is not None
    seeded = "seed" in inspect.signature(kind).parameters

    def make(seed: int) -> Any:
        return kind(**specs[task].kwargs, **({"seed": seed} if seeded else {}))

    return AuthorsEnv(task, make, horizon)


class AuthorsEnv(gymnasium.Env):
    """Runs an authors' environment so that an episode is a function of its seed and actions.

    - Theirs draw from Python's, numpy's and torch's global generators, and some when they are made,
      from a seed of their own (Pipeline). Here all are seeded, and the global ones put back after
      each call.
    - Theirs carry settings over a reset (Fusion). Here an episode begins with a new one, as in the
      collection of their data.
    - Theirs return numbers outside the spaces, or of another type, than they declare, and leave
      the end at the horizon to a wrapper.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 — Gymnasium declares it on the instance

    def __init__(self, task: str, make: Callable[[int], Any], horizon: int) -> None:
        self._task, self._make, self._horizon = task, make, horizon
        self._clock = 0
        self._generators = _global_generators()
        with self._own_generators():
            self._env = self._make(0)
        space = self._env.observation_space
        finite = np.finfo(space.dtype).max
        self.observation_space = gymnasium.spaces.Box(-finite, finite, space.shape, space.dtype)
        self.action_space = self._env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the episode of this seed; without one, that of the next seed drawn."""
        super().reset(seed=seed)
        seed = (int(self.np_random.integers(2**31)) if seed is None else seed) % 2**32
        self._clock = 0
        with self._own_generators():
            _seed_globally(seed)
            self._env = self._make(seed)
            _seed_globally(seed)  # the data's episodes were seeded between making and reset
            observation, _ = self._env.reset(seed=seed)
        return self._observed(observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of theirs."""
        self._clock += 1
        with self._own_generators():
            observation, reward, terminal, timeout, _ = self._env.step(self._acceptable(action))
        ended = bool(terminal)
        late = bool(timeout) or self._clock >= self._horizon
        return self._observed(observation), float(np.squeeze(reward)), ended, late, {}

    def _observed(self, observation: Any) -> np.ndarray:
        return np.array(observation, dtype=self.observation_space.dtype)

    def _acceptable(self, action: np.ndarray) -> Any:
        """The action in a form that today's numpy and Box2D take."""
        action = np.asarray(action, dtype=np.float32)
        if self._task == "Simglucose":
            return action[0]  # it is written into one number, which an array no longer is
        if self._task == "RocketRecovery":
            return action.view(_Doubles)
        return action

    @contextlib.contextmanager
    def _own_generators(self) -> Iterator[None]:
        others = _global_generators()
        _set_global_generators(self._generators)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the spaces, which are replaced above
                yield
        finally:
            self._generators = _global_generators()
            _set_global_generators(others)


class _Doubles(np.ndarray):
    """An action that becomes float64 where it is cast.

    RocketRecovery casts it to float32. Its products with Python's numbers, which Box2D takes as
    float64 only, were that before numpy 2.
    """

    def astype(self, *_: Any, **__: Any) -> np.ndarray:
        return np.array(self, dtype=np.float64)


def _global_generators() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch and torch.get_rng_state()


def _set_global_generators(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def _seed_globally(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextlib.contextmanager
def _imports(task: str) -> Iterator[None]:
    """Import the authors' modules: without their warning filters, and with what they miss today."""
    # Simglucose imports this and does not use it; setuptools has it no more.
    missing = importlib.util.find_spec("pkg_resources") is None
    if missing:
        sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as error:
        name = str(error.name)
        if name.startswith("neorl2"):
            raise UserError(f"NeoRL2's source at {checkout()} has no {name}. {_REMEDY}") from error
        raise UserError(
            f"NeoRL2's {task} needs the package {name!r}, which is not installed."
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"NeoRL2's {task} cannot be made: {error}") from error
    finally:
        if missing:
            del sys.modules["pkg_resources"]


@functools.cache
def _mend_patients() -> None:
    """Hand a patient's initial state over as an array: pandas 3 no longer counts a row's labels."""
    package = "neorl2.envs.data.simglucose.patient.t1dpatient"
    patient = importlib.import_module(package).T1DPatient
    original = patient.__init__

    def init(self: Any, params: Any, init_state: Any = None, **kwargs: Any) -> None:
        if init_state is None:
            init_state = params.iloc[2:15].to_numpy(dtype=float)
        original(self, params, init_state, **kwargs)

    patient.__init__ = init


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The weights of a network in the ONNX format by name: its float32 arrays, without scalars.

    As much of the format as needs no package: messages of numbered fields, in which a model's
    field 7 is its graph, a graph's fields 5 are tensors, and a tensor's fields are 1 its shape,
    2 its type (1 is float32), 8 its name and 9 its bytes.
    """
    found = {}
    (graph,) = _fields(path.read_bytes())[7]
    for message in _fields(graph)[5]:
        tensor = _fields(message)
        if tensor[2] == [1] and 1 in tensor:
            numbers = np.frombuffer(tensor[9][0], dtype="<f4").reshape(tensor[1])
            found[tensor[8][0].decode()] = numbers.astype(np.float32)
    return found


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of a protobuf message by field: whole numbers, or bytes."""
    found: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            found.setdefault(number, []).append(value)
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, position = _varint(message, position)
        found.setdefault(number, []).append(message[position : position + size])
        position += size
    return found


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
