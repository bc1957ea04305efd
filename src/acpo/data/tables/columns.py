"""Which columns of a table play which part: as the user said, or as their names say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase

import numpy as np

from acpo.data import expression
from acpo.data.expression import listed, unknown_name
from acpo.data.options import DataOptions
from acpo.errors import UserError

_MANY = {
    "next_observation": re.compile(r"next_?(obs|state|s_)", re.IGNORECASE),
    "observation": re.compile(r"(obs|observations?|states?)(?![a-z])|s_", re.IGNORECASE),
    "action": re.compile(r"(act|actions?)(?![a-z])|[ua]_", re.IGNORECASE),
}
# In order of preference. An array of one column is called reward_0.
_ONE = {
    "reward": ("reward", "rewards", "rew", "r", "reward_0", "rewards_0"),
    "episode": ("episode", "episode_id", "run_id", "trajectory", "trajectory_id", "traj"),
    "terminal": ("terminal", "terminals", "terminated", "done", "dones"),
    "timeout": ("timeout", "timeouts", "truncated", "truncation"),
    "time": ("time", "timestamp", "datetime", "date", "t"),
}


@dataclass(frozen=True)
class Columns:
    """The part each column plays.

    Args:
        reward: A column, or an expression over `reward_from`.
        categorical: Columns of the observation to read as categories, whatever they hold.
        guessed: Fields that were not given but chosen by the columns' names.
        unused: Columns that play no part.
    """

    observation: tuple[str, ...]
    action: tuple[str, ...]
    next_observation: tuple[str, ...]
    reward: str
    reward_from: tuple[str, ...]
    episode: str | None
    time: str | None
    terminal: str | None
    timeout: str | None
    categorical: tuple[str, ...]
    guessed: frozenset[str]
    unused: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        single = [self.episode, self.time, self.terminal, self.timeout]
        several = (*self.observation, *self.action, *self.next_observation, *self.reward_from)
        return tuple(dict.fromkeys([*several, *(name for name in single if name)]))

    def lines(self) -> list[str]:
        """What was chosen, a line per part, for the user to read before training."""
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if not value or field.name in ("guessed", "reward_from"):
                continue
            text = value if isinstance(value, str) else ", ".join(value)
            guess = " (guessed)" if field.name in self.guessed else ""
            shown.append(f"{field.name.replace('_', ' '):16s}  {text}{guess}")
        return shown


def resolve(where: str, names: Sequence[str], options: DataOptions, *, folder: bool) -> Columns:
    """The columns that `options` name, and guesses for those it does not.

    Args:
        where: What messages call the table.
        folder: The table is a file of several, so that episodes end at its end at least.

    Raises:
        UserError: if a name or pattern fits no column, or if a part that is needed has none.
    """
    return _Resolution(where, names, options).columns(folder)


def natural(name: str) -> list[int | str]:
    """A sort key that puts obs_2 before obs_10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))]


class _Resolution:
    def __init__(self, where: str, names: Sequence[str], options: DataOptions) -> None:
        self.where, self.names, self.options = where, names, options
        self.guessed: set[str] = set()
        self.given = {part: self._matching(part, getattr(options, part)) for part in _MANY}
        singles = {part: getattr(options, part) for part in _ONE}
        # What was given one part is not guessed to play another.
        self.taken = {name for given in self.given.values() for name in given}
        self.taken |= {name for name in singles.values() if name}

    def columns(self, folder: bool) -> Columns:
        many = {part: self._many(part) for part in _MANY}
        self._check(many)
        reward, reward_from = self._reward()
        episode, terminal, timeout = map(self._one, ("episode", "terminal", "timeout"))
        told = bool(folder or episode or terminal or timeout)
        # A time column would also cut episodes at its gaps: guessed only where nothing else can.
        wanted = self.options.time or self.options.gap is not None or not told
        time = self._one("time") if wanted else None
        self._check_episodes(told, time)
        chosen = Columns(
            observation=many["observation"],
            action=many["action"],
            next_observation=many["next_observation"],
            reward=reward,
            reward_from=reward_from,
            episode=episode,
            time=time,
            terminal=terminal,
            timeout=timeout,
            categorical=self._categorical(many["observation"]),
            guessed=frozenset(self.guessed),
        )
        return replace(chosen, unused=tuple(n for n in self.names if n not in chosen.used))

    def _many(self, part: str) -> tuple[str, ...]:
        if self.given[part]:
            return self.given[part]
        # The guessed successors of columns that were named by hand would be another list.
        if part == "next_observation" and self.given["observation"]:
            return ()
        free = (name for name in self.names if name not in self.taken)
        found = tuple(sorted(filter(_MANY[part].match, free), key=natural))
        if found:
            self.guessed.add(part)
        return found

    def _one(self, part: str) -> str | None:
        given = getattr(self.options, part)
        if given:
            return self._known(part, given)
        free = {name.lower(): name for name in reversed(self.names) if name not in self.taken}
        for name in _ONE[part]:
            if name in free:
                self.guessed.add(part)
                return free[name]
        return None

    def _reward(self) -> tuple[str, tuple[str, ...]]:
        text = self.options.reward
        if text is None or text in self.names:
            column = self._one("reward")
            if column is None:
                raise self._unnamed("reward", "a column or an expression over columns")
            return column, (column,)
        needed = sorted(expression.names(text))
        for name in needed:
            self._known("reward", name)
        # Without rows: all but the numbers is checked before anything is read.
        expression.evaluate(text, {name: np.zeros(0) for name in needed})
        return text, tuple(needed)

    def _check(self, many: dict[str, tuple[str, ...]]) -> None:
        for part in ("observation", "action"):
            if not many[part]:
                raise self._unnamed(part, "names or patterns such as 'sensor_*'")
        both = [name for name in many["action"] if name in many["observation"]]
        if both:
            raise UserError(
                f"{self.where}: {listed(both)} cannot be observation and action at once, for the "
                "policy would be shown what it has to choose; leave it out of one."
            )
        following = many["next_observation"]
        if following and len(following) != len(many["observation"]):
            if "next_observation" in self.guessed:
                many["next_observation"] = ()
                self.guessed.remove("next_observation")
                return
            raise UserError(
                f"{self.where}: the next observation has {len(following)} columns but the "
                f"observation {len(many['observation'])}; name the same ones in the same order."
            )

    def _check_episodes(self, told: bool, time: str | None) -> None:
        gap = self.options.gap
        if gap is not None and time is None:
            raise self._unnamed("time", "the column in which the gap is looked for")
        if gap is not None and not gap > 0:
            raise UserError(f"The gap must be above 0, not {gap:g}; it is a pause in '{time}'.")
        if not told and time is None:
            raise UserError(
                f"{self.where}: nothing tells where an episode ends. Name a column whose value "
                "tells episodes apart (--episode), one that is true at an episode's last row "
                "(--terminal, --timeout), or the time (--time), in which a pause ends an episode. "
                f"The columns are {listed(self.names)}."
            )

    def _categorical(self, observation: Iterable[str]) -> tuple[str, ...]:
        found = self._matching("categorical", self.options.categorical)
        for name in found:
            if name not in observation:
                raise UserError(
                    f"{self.where}: '{name}' is to be categorical (--categorical) but is no column "
                    f"of the observation, which has {listed(observation)}."
                )
        return found

    def _matching(self, part: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            fitting = [name for name in self.names if fnmatchcase(name, pattern)]
            if pattern in self.names:  # as it stands, so that 'x[0]' can be a name
                fitting = [pattern]
            found += sorted(fitting, key=natural) or [self._known(part, pattern)]
        return tuple(dict.fromkeys(found))

    def _known(self, part: str, name: str) -> str:
        if name not in self.names:
            raise UserError(f"{self.where}: {_flag(part)}: {unknown_name(name, self.names)}")
        return name

    def _unnamed(self, part: str, what: str) -> UserError:
        return UserError(
            f"{self.where}: no column is called like the {part.replace('_', ' ')}, so name it with "
            f"{_flag(part)}: {what}. The columns are {listed(self.names)}."
        )


def _flag(part: str) -> str:
    return f"--{part.replace('_', '-')}"
