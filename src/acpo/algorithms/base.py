"""What every algorithm shares: the shapes it is told, the batch it is given, its common fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from acpo.errors import UserError
from acpo.networks import Head, HeadKind

Metrics = dict[str, Array]
T = TypeVar("T")


class Spec(NamedTuple):
    """All an algorithm needs to know about a dataset before seeing a row of it."""

    observation_dim: int
    action_dim: int
    total_steps: int
    """Length of the run; learning-rate schedules span it."""


class Size(NamedTuple):
    """How much data there is."""

    rows: int
    observation_dim: int
    action_dim: int


class Batch(NamedTuple):
    """Transitions (s, a, r, s', terminal), stacked on the first axis.

    `terminals` is 1.0 only where the environment truly ended; a time limit is 0.0. `log_beta` is
    log πβ(a|s), `log_beta_typical` what is typical of it at s (`Density.typical_log_prob`), and
    `behavior` what πβ is known by: per row the parameters of πβ(·|s), or for all rows its weights
    where no parameters can stand for them. All are None for algorithms without πβ.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    behavior: Any = None
    log_beta: Any = None
    log_beta_typical: Any = None


class About(NamedTuple):
    """A method in one line of `acpo algorithms`."""

    paper: str
    year: int
    family: str
    """weighted BC, density, support, conservative value, ensemble or diffusion."""
    constrains: str
    """What is tied to the data, and how."""
    networks: str
    source: str
    """Where its settings are from."""


class Limit(NamedTuple):
    """What a field may be, and that in words."""

    allows: Callable[[Any], bool]
    words: str


ANY = Limit(lambda x: True, "anything")
FINITE = Limit(isfinite, "a finite number")
ABOVE_0 = Limit(lambda x: x > 0, "above 0")
NOT_NEGATIVE = Limit(lambda x: x >= 0, "0 or more")
COUNT = Limit(lambda x: x >= 1, "at least 1")
UNIT = Limit(lambda x: 0 <= x <= 1, "between 0 and 1")
INSIDE = Limit(lambda x: 0 < x < 1, "above 0 and below 1")
SHARE = Limit(lambda x: 0 <= x < 1, "at least 0 and below 1")
STEP = Limit(lambda x: 0 < x <= 1, "above 0 and at most 1")
LAYERS = Limit(lambda x: x and min(x) >= 1, "one or more layers of at least 1 unit")


class Algorithm:
    """What the loop and the command line ask of any method, beside its losses and its update."""

    about: ClassVar[About]
    settings: ClassVar[dict[str, dict[str, Any]]] = {}
    """Fields by suite (mujoco, antmaze, kitchen, neorl2) or task (hopper-medium-v2, DMSD) where its
    authors chose others than the defaults; "relabel" is the reward to train on."""
    needs_density: ClassVar[bool] = False
    """Whether πβ is fitted beforehand, by the field `behavior`, and handed over in the batch."""
    return_range: ClassVar[float] = 1000.0
    """The range of episode returns to which `reward_scale` None scales them."""

    limits: ClassVar[dict[str, Limit]] = {
        "gamma": UNIT,
        "tau": STEP,
        "learning_rate": ABOVE_0,
        "final_learning_rate": NOT_NEGATIVE,
        "batch_size": COUNT,
        "hidden": LAYERS,
        "actor_average": UNIT,
        "reward_scale": Limit(lambda x: x != 0, "other than 0"),
    }

    def __post_init__(self) -> None:
        """Refuse what the method cannot train with."""
        for name, value in _settings(self):
            limit = self.limits.get(name, ANY)
            if isinstance(value, float) and not isfinite(value):
                limit = FINITE
            if value is None or limit.allows(value):
                continue
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
            flag = "epsilon" if name == "rule.epsilon" else name.replace("_", "-")
            raise UserError(f"--{flag} is {shown or 'empty'}; it must be {limit.words}.")
        low, high = (getattr(self, f"log_std_{end}", 0.0) for end in ("min", "max"))
        if low > high:
            raise UserError(
                f"--log-std-min is {low:g}; it must be at most --log-std-max, {high:g}."
            )

    @property
    def reward_scale(self) -> float | None:
        """Factor on rewards."""
        return 1.0

    @property
    def value_start(self) -> float | None:
        """Where the critics start."""
        return 0.0

    @property
    def entropy_price(self) -> float | None:
        """What a nat of entropy is worth in the critics' targets, in units of its own."""
        return 1.0

    @property
    def head(self) -> str:
        """How the actor's outputs become an action: plain, squashed, deterministic; or auto."""
        return "deterministic"

    def behavior_head(self, kind: str) -> Head:
        """The head of a Gaussian πβ, of a kind that the data may have chosen."""
        return Head("plain" if kind == "deterministic" else kind)  # type: ignore[arg-type]

    def settled(self, head: HeadKind, log_beta: np.ndarray, size: Size) -> Self:
        """Itself, with what was left open until the data was known: the head that suits it, log πβ
        of held-out actions, and how much data there is."""
        return self


def _settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field by the name it has in `limits`: those of a config within it after a dot."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _settings(value, f"{field.name}.")
        else:
            yield prefix + field.name, value


@dataclass(frozen=True)
class Method(Algorithm):
    """Fields that methods with a critic have in common.

    A method overrides a default where its authors chose otherwise, and adds its own.
    """

    gamma: float = 0.99
    """γ, the discount."""
    tau: float = 5e-3
    """τ, rate of the soft target update."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    batch_size: int = 256
    """Transitions per update."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of every network."""
    normalize_observations: bool = False
    """Z-score observations with the data's mean and deviation; the policy carries both."""
    reward_scale: float | None = 1.0
    """Factor on rewards. None: so that episode returns span a range of 1000."""


def bellman_target(rewards: Array, terminals: Array, next_value: Array, gamma: float) -> Array:
    """r + γ (1 − terminal) V(s'), a constant to the gradient; a time limit is not a terminal."""
    return jax.lax.stop_gradient(rewards + gamma * (1.0 - terminals) * next_value)


def expectile_loss(difference: Array, expectile: float) -> Array:
    """E[|τ − 1{u < 0}| u²]: of u = q − v, least where v is the expectile τ of q."""
    share = jnp.where(difference > 0, expectile, 1.0 - expectile)
    return jnp.mean(share * difference**2)


def soft_update(target: T, online: T, tau: float | Array) -> T:
    """φ' ← (1 − τ) φ' + τ φ."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


BLOCK_INPUTS = 2048
"""About as many inputs of a network at once as keep its layers in a CPU's cache."""


def gradient_by_blocks(
    loss: Callable[[T, Any], tuple[Array, Metrics]], trained: T, rows: Any, inputs: int
) -> tuple[T, Metrics]:
    """The gradient of a loss, and its metrics, that are means over rows: the mean over blocks.

    Where networks run on many `inputs` per row, their layers for all rows leave a CPU's cache
    between a product and what follows it; those of a block stay (docs/performance.md). On other
    devices all rows are one block, as where their number has no divisor near enough.
    """
    gradient = jax.grad(loss, has_aux=True)
    count = len(jax.tree.leaves(rows)[0])
    fitting = max(BLOCK_INPUTS // inputs, 1)
    size = max(k for k in range(1, min(fitting, count) + 1) if count % k == 0)
    if jax.default_backend() != "cpu" or size == count or 4 * size < fitting:
        return gradient(trained, rows)
    blocks = jax.tree.map(lambda x: x.reshape(count // size, size, *x.shape[1:]), rows)

    def add(total: Any, block: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(trained, block)), None

    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(gradient, trained, rows))
    total, _ = jax.lax.scan(add, nothing, blocks)
    return jax.tree.map(lambda x: x * (size / count), total)


class Schedule(NamedTuple):
    """Where a run stands; part of an algorithm's state, so that it resumes with it."""

    step: Array
    total: Array

    @classmethod
    def start(cls, total_steps: int) -> Schedule:
        return cls(jnp.int32(0), jnp.int32(max(total_steps, 1)))

    def cosine(self, first: float, last: float) -> Array:
        """last + (first − last)·½(1 + cos(π t/T)), constant after T."""
        share = jnp.minimum(self.step / self.total, 1.0)
        return last + (first - last) * 0.5 * (1.0 + jnp.cos(jnp.pi * share))

    def since(self, share: float) -> Array:
        """Steps since that first share of the run was over; negative within it."""
        return self.step - (share * self.total).astype(jnp.int32)

    def average(self, average: T, online: T, share: float) -> T:
        """Running average of `online` over about `share` of the steps so far, step t counting as
        t^(1/share − 1): all steps alike at 1, the last alone at 0. So it needs no length of its own
        (polynomial-decay averaging, Shamir and Zhang 2013)."""
        return soft_update(average, online, 1.0 / (1.0 + share * self.step))

    def next(self) -> Schedule:
        return Schedule(self.step + 1, self.total)


def adam_step(
    parameters: T, gradient: T, state: optax.OptState, rate: Array | float
) -> tuple[T, optax.OptState]:
    """One Adam step at a rate given from outside."""
    direction, state = optax.scale_by_adam().update(gradient, state)
    return jax.tree.map(lambda p, d: p - rate * d, parameters, direction), state
