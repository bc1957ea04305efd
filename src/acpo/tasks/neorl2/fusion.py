"""NeoRL2's Fusion: hold a tokamak's plasma at targets that change with every step.

The plant is the authors' networks, whose weights are read from a checkout of their source. The
machine's settings u_t and the plasma's response y_t = (βn, q95, q0, li) follow

    y_0 = g(u_0),    y_t = mean over ten models of f(r_{t−9}, …, r_t),    r_t = (y_{t−1}, u_t),

where f is an LSTM of two layers that begins each window of ten rows with an empty memory; βp is
the mean of ten small networks of (βn, u). One action is 19 of these t.

The authors run every window of every model and episode by itself, row after row: 7,600 products
of a vector and a matrix for one action, by 21 thread pools that get in each other's way. Here a row
enters the ten windows that contain it at once, for all episodes: 760 products of matrices, with
the same numbers in them. βp is answered once for an action, not 19 times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from acpo.tasks.neorl2.authors import checkout, tensors
from acpo.tasks.neorl2.batched import Batched, BatchedEnv

# The settings: current Ip [MA], field Bt [T], density fraction, beams Pnb1a–c [MW], waves Pec2–3
# [MW] and Zec2–3 [cm], inner and outer radius R [m], elongation κ, upper and lower triangularity δ.
INITIAL = (0.5, 1.8, 0.275, 1.5, 1.5, 0.5, 0.0, 0.0, 0.0, 0.0, 1.32, 2.22, 1.7, 0.3, 0.75)
CONTROLLED = [0, 12, 13, 14, 10, 11]  # Ip, κ, δ, δ, R, R
LOW = np.array((0.3, 1.6, 0.1, 0.5, 1.265, 2.18))
HIGH = np.array((0.8, 2.0, 0.5, 0.9, 1.36, 2.29))
BEAMS = [3, 4, 5]
STRONGEST = (1.75, 1.75, 1.5)
TARGETS = (1.6, 5.0, 0.95)  # of βp, q95 and li, in the first step
TARGET_LOW, TARGET_HIGH = (1.1, 3.8, 0.84), (2.1, 6.2, 1.06)
TOLERANCE = np.array((0.2, 0.5, 0.05), dtype=np.float32)

_MODELS = 10
_ROWS = 10
_RAMP = 20  # additions from the old settings to the new, before the plant moves
_SETTLING = 19  # steps of the plant with the new settings
_YEAR = 2021.0  # an input of the networks that never changes
# What the networks take of the settings. Of the pair R they take middle and half-width, of the R
# that follows alone whether it leaves the limiter.
_FOR_RESPONSE = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 10, 2]
_FOR_PRESSURE = [0, 1, 10, 11, 12, 13, 14]
_LIMITER = 1.265 + 1e-4
# The networks answer in standard deviations from a mean.
_STEADY = np.array(
    [
        (1.22379703, 5.2361062, 1.64438005, 1.12040048),
        (0.72255576, 1.5622809, 0.96563557, 0.23868018),
    ]
)
_DYNAMIC = np.array(
    [
        (1.30934765, 5.20082444, 1.47538417, 1.14439883),
        (0.74135689, 1.44731883, 0.56747578, 0.23018484),
    ]
)
_PRESSURE = np.array([(1.021588, 187408.512), (0.643390272, 122543.529)])  # βp, energy [J]


def reward(observations: np.ndarray, next_observations: np.ndarray) -> np.ndarray:
    """r = −log √mean(e²), e = ((βp', q95', li') − targets) / (0.2, 0.5, 0.05), in float32.

    Takes one row or many. The targets are those that were seen before the step.
    """
    error = (next_observations[..., 6:9] - observations[..., 9:12]) / TOLERANCE
    return -np.log(np.sqrt(np.mean(np.square(error), axis=-1)))


def make_fusion() -> BatchedEnv:
    """The plain Gymnasium environment; `Fusion` has many episodes.

    Raises:
        UserError: if the authors' source is not importable.
    """
    return BatchedEnv(Fusion())


class Fusion(Batched):
    """N episodes. An observation is (Ip, κ, δ, δ, R, R; βp, q95, li; their targets; three beams).

    An action sets Ip, κ, δ and R between LOW and HIGH. Settings and targets are kept in
    thousandths, cut and not rounded. After each step the next targets and beams are drawn, from
    the seed's `RandomState`, so that the seed of a recorded episode gives its draws. The plasma's
    last ten rows are hidden.

    Unlike the authors' own reset, which keeps the last episode's settings, each episode begins
    from INITIAL, as those in their data do. Products are over the whole batch: the same episode
    may differ by float32 rounding between batches of different sizes.
    """

    observation_dim = 15
    action_dim = 6
    horizon = 100
    elementwise = False

    def __init__(self) -> None:
        folder = checkout("envs/data/fusion_lstm/weights")
        names = [f"best_model{i}.onnx" for i in range(_MODELS)]
        self._steady = [_network(folder / "nn" / names[0])]
        self._plasma = [_network(folder / "lstm" / name) for name in names]
        self._pressure = [_network(folder / "bpw" / name) for name in names]

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin one episode per seed; observations [N, s], float32."""
        self._draws = [np.random.RandomState(seed % 2**32) for seed in seeds]
        return super().reset(seeds)

    def _start(self) -> np.ndarray:
        episodes = len(self._draws)
        self._settings = np.tile(_thousandths(INITIAL), (episodes, 1))
        self._targets = np.tile(_thousandths(TARGETS), (episodes, 1))
        taken = self._taken()
        self._response = np.asarray(_answer(self._steady, taken, _STEADY))
        self._memory = _begin(self._plasma, np.hstack([self._response, taken]))
        return self._observe(self._beta_p())

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        wanted = (HIGH - LOW) * ((actions + 1) / 2) + LOW
        current = self._settings[:, CONTROLLED] / 1000.0
        difference = (wanted - current) / _RAMP
        for _ in range(_RAMP):  # not one product: the last bit decides what is cut off
            current += difference
        self._settings[:, CONTROLLED] = _thousandths(current)
        self._memory, response = _settle(self._plasma, self._memory, self._response, self._taken())
        self._response = np.asarray(response)
        beta_p = self._beta_p()
        for e, draw in enumerate(self._draws):
            self._targets[e] = _thousandths(draw.uniform(TARGET_LOW, TARGET_HIGH))
            self._settings[e, BEAMS] = _thousandths(draw.uniform(0.0, STRONGEST))
        after = self._observe(beta_p)
        return after, reward(self._observations, after), np.zeros(len(actions), dtype=bool)

    def _observe(self, beta_p: np.ndarray) -> np.ndarray:
        seen = self._settings / 1000.0
        parts = [seen[:, CONTROLLED], beta_p, self._response[:, [1, 3]]]
        parts += [self._targets / 1000.0, seen[:, BEAMS]]
        return np.hstack(parts).astype(np.float32)

    def _beta_p(self) -> np.ndarray:
        shape = _middle_and_half(self._settings[:, _FOR_PRESSURE], 2)
        x = np.hstack([self._response[:, :1], shape])
        return np.asarray(_answer(self._pressure, x, _PRESSURE))[:, :1]

    def _taken(self) -> np.ndarray:
        taken = _middle_and_half(self._settings[:, _FOR_RESPONSE], 9)
        taken[:, 14] = taken[:, 14] > _LIMITER
        return np.hstack([taken, np.full((len(taken), 1), _YEAR, dtype=np.float32)])


class _Norm(NamedTuple):
    """x ⊙ scale + shift."""

    scale: Any
    shift: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.scale + self.shift


class _Dense(NamedTuple):
    """Norm, product with W and sum with b; then σ and the same again, as often as there are."""

    norms: list[_Norm]
    kernels: list[Any]
    biases: list[Any]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Answers [N, outputs] to x [N, inputs]."""
        for i, norm in enumerate(self.norms):
            x = norm(jax.nn.sigmoid(x) if i else x) @ self.kernels[i] + self.biases[i]
        return x


class _Cell(NamedTuple):
    """A layer: (i, f, g, o) = x W + h U + b, c' = σ(f) c + σ(i) tanh g, h' = σ(o) tanh c'.

    Its memory (h, c) is [2, 9, N, 200], for the windows under way: number k has taken k + 1 rows.
    """

    kernel: Any
    recurrent: Any
    bias: Any

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x enters all windows and an empty one: h' [10, N, 200] of all, and the new memory.

        The window that has ten rows by then is not remembered.
        """
        past = jnp.pad(memory[0] @ self.recurrent, ((1, 0), (0, 0), (0, 0)))
        i, f, g, o = jnp.split(x @ self.kernel + past + self.bias, 4, axis=-1)
        c = jax.nn.sigmoid(i) * jnp.tanh(g)
        c = c.at[1:].add(jax.nn.sigmoid(f[1:]) * memory[1])
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, jnp.stack([h[:-1], c[:-1]])


class _Plasma(NamedTuple):
    """One model f. Its memory is that of both layers, [2, 2, 9, N, 200]."""

    enter: _Norm
    lower: _Cell
    climb: _Norm
    upper: _Cell
    leave: _Dense

    def __call__(self, memory: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The answer [N, 4] to the last ten rows, of which `row` [N, 21] is the latest."""
        hidden, lower = self.lower(memory[0], self.enter(row))
        hidden, upper = self.upper(memory[1], self.climb(hidden))
        return self.leave(hidden[-1]), jnp.stack([lower, upper])


@jax.jit
def _begin(models: list[_Plasma], row: jax.Array) -> list[jax.Array]:
    """The memories as if this row [N, 21] had been there all along."""

    def enter(memory: list[jax.Array], _: None) -> tuple[list[jax.Array], None]:
        return [model(m, row)[1] for model, m in zip(models, memory, strict=True)], None

    width = len(models[0].lower.recurrent)
    empty = [jnp.zeros((2, 2, _ROWS - 1, len(row), width))] * len(models)
    return jax.lax.scan(enter, empty, length=_ROWS - 1)[0]


@jax.jit
def _settle(
    models: list[_Plasma], memory: list[jax.Array], response: jax.Array, taken: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """The memories and the response [N, 4] after 19 steps with the same settings."""

    def step(carry: Any, _: None) -> tuple[Any, None]:
        memory, response = carry
        row = jnp.hstack([response, taken])
        pairs = [model(m, row) for model, m in zip(models, memory, strict=True)]
        answers = jnp.stack([answer for answer, _ in pairs])
        return ([m for _, m in pairs], _mean(answers, _DYNAMIC)), None

    return jax.lax.scan(step, (memory, response), length=_SETTLING)[0]


@jax.jit
def _answer(models: list[_Dense], x: jax.Array, units: jax.Array) -> jax.Array:
    return _mean(jnp.stack([model(x) for model in models]), units)


def _mean(answers: jax.Array, units: Any) -> jax.Array:
    mean, deviation = units
    return answers.mean(axis=0) * deviation + mean


def _thousandths(values: np.ndarray | tuple[float, ...]) -> np.ndarray:
    return (np.asarray(values) * 1000.0).astype(np.int64)


def _middle_and_half(thousandths: np.ndarray, column: int) -> np.ndarray:
    """In units and float32; two columns, inner and outer radius, as middle and half-width."""
    taken = (thousandths / 1000.0).astype(np.float32)
    inner, outer = taken[:, column].copy(), taken[:, column + 1].copy()
    taken[:, column], taken[:, column + 1] = (inner + outer) / 2, (outer - inner) / 2
    return taken


def _network(path: Path) -> Any:
    """A network as a `_Dense`, or a `_Plasma` where it has cells."""
    weights = tensors(path)

    def padded(name: str) -> str:
        return re.sub(r"\d+", lambda number: number[0].zfill(9), name)

    def named(pattern: str) -> list[np.ndarray]:
        """The weights whose names match, in the order of the numbers in these."""
        names = sorted(filter(re.compile(pattern).search, weights), key=padded)
        return [weights[name].squeeze() for name in names]

    shifts = named("norm/sub")
    shifts[1:1] = named("const_fold")  # the LSTM's second, by another name
    first, *norms = map(_Norm, named("norm/mul"), shifts)
    if len(first.scale) > len(_FOR_PRESSURE) + 1:
        # The last input is the year. Its product with the scale is hundreds of times what is left
        # after the sum: where a compiler joins the two, the answers' fifth digit changes. As it
        # never changes, it goes into the shift here.
        first.shift[-1] += np.float32(_YEAR) * first.scale[-1]
        first.scale[-1] = 0.0
    dense = named("dense.*MatMul"), named("dense.*BiasAdd")
    if not (cells := named("^Func")):
        return jax.device_put(_Dense([first, *norms], *dense))
    lower, upper = _Cell(*cells[:3]), _Cell(*cells[3:])
    return jax.device_put(_Plasma(first, lower, norms[0], upper, _Dense(norms[1:], *dense)))
