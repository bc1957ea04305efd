"""Plain environments that advance together: in this process, or over worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acpo.errors import UserError
from acpo.tasks import make_env
from acpo.tasks.neorl2.batched import Steps

if TYPE_CHECKING:
    import gymnasium

# Workers must save this much before they are started: about twice what starting them takes.
WORTHWHILE_SECONDS = 2.0
# One step's messages to all workers and back: 0.3 ms at best, and 0.7 to 2.4 ms were seen on a
# machine whose CPUs are busy, where each process waits for its turn.
MESSAGE_SECONDS = 1e-3
# Length of an episode, as long as none has been seen.
USUAL_STEPS = 1000
PROBED_STEPS, PROBED_SECONDS = 10, 0.05
ENDING_SECONDS = 2.0


class Serial:
    """Environments advanced one after another, with the interface of `Batched`."""

    def __init__(self, environment: str, first: gymnasium.Env) -> None:
        self._environment, self._envs = environment, [first]

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin one episode per seed; observations [N, s]."""
        while len(self._envs) < len(seeds):
            self._envs.append(make_env(self._environment))
        starts = [env.reset(seed=seed)[0] for env, seed in zip(self._envs, seeds, strict=False)]
        self._observations = np.stack(starts)
        self._terminals = np.zeros(len(seeds), dtype=bool)
        self._timeouts = np.zeros(len(seeds), dtype=bool)
        return self._observations.copy()

    def step(self, actions: np.ndarray) -> Steps:
        """Advance by actions [N, a]. An ended episode repeats its last step, with reward 0."""
        rewards = np.zeros(len(actions))
        for e in np.flatnonzero(~(self._terminals | self._timeouts)):
            observation, reward, terminal, timeout, _ = self._envs[e].step(actions[e])
            self._observations[e] = observation
            rewards[e] = float(reward)
            self._terminals[e], self._timeouts[e] = terminal, timeout
        return Steps(
            self._observations.copy(), rewards, self._terminals.copy(), self._timeouts.copy()
        )


class Failure(NamedTuple):
    """What a worker answers when its environments raised an exception."""

    sentence: str
    traceback: str


class Workers:
    """The same over processes of `acpo.evaluation.worker`; one message to each per step.

    Each holds every W-th episode: where policies differ in how long they last, all have some of
    each policy's.
    """

    def __init__(self, environment: str, count: int) -> None:
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _end, self._processes)
        # Where this process finds modules, the worker must; -c, and not -m, so that it looks there
        # for acpo itself.
        path = [entry for entry in sys.path if isinstance(entry, str)]
        code = (
            f"import sys; sys.path[:] = {path!r}; from acpo.evaluation.worker import main; main()"
        )
        for _ in range(count):
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # a Ctrl-C in the terminal is for this process alone
                )
            )

    def made(self) -> list[tuple[str, ...]]:
        """What each worker made of the environment's name; see `identity`."""
        return self._ask("make", [self._environment] * len(self._processes))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin one episode per seed; observations [N, s]."""
        count = min(len(self._processes), len(seeds))
        return _interleaved(self._ask("reset", [list(seeds[w::count]) for w in range(count)]))

    def step(self, actions: np.ndarray) -> Steps:
        """Advance by actions [N, a]. An ended episode repeats its last step, with reward 0."""
        count = min(len(self._processes), len(actions))
        answers = self._ask("step", [actions[w::count] for w in range(count)])
        return Steps(*map(_interleaved, zip(*answers, strict=True)))

    @property
    def closed(self) -> bool:
        """Whether the processes were ended, by `close` or because one failed."""
        return not self._processes

    def close(self) -> None:
        """End the processes."""
        _end(self._processes)
        self._processes.clear()

    def _ask(self, order: str, arguments: list[Any]) -> list[Any]:
        """Send each of the first workers its argument, then gather what they answer."""
        asked = self._processes[: len(arguments)]
        answers = []
        try:
            for process, argument in zip(asked, arguments, strict=True):
                _send(process, (order, argument))
            for process in asked:
                answers.append(pickle.load(_pipe(process.stdout)))
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            how = _how_it_ended(process)
            self.close()
            raise UserError(
                f"A worker process that simulates {self._environment} {how}. If memory is short, "
                "evaluate fewer episodes at a time."
            ) from error
        except BaseException:  # Ctrl-C: what is left in the pipes belongs to no question
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, Failure):
                self.close()
                failure = UserError(f"{self._environment} failed: {answer.sentence}")
                failure.add_note(f"In a worker process:\n{answer.traceback}")
                raise failure
        return answers


class Environments:
    """N environments by name, over as many workers as there are CPUs once these pay for themselves.

    Where an episode is run changes none of its numbers, so this may depend on the clock: workers
    are started when the evaluations so far and the coming one would together have saved more by
    them than their start takes.
    """

    def __init__(self, environment: str, first: gymnasium.Env, workers: int | None) -> None:
        """With `workers`, exactly so many from the first evaluation on; 0 for none."""
        self._environment, self._first, self._wanted = environment, first, workers
        self._most = available_cpus() if workers is None else workers
        self._serial = Serial(environment, first)
        self._workers: Workers | None = None
        self._now: Serial | Workers = self._serial
        self._saved = 0.0  # seconds that workers would have saved in all evaluations
        self._seconds, self._steps = 0.0, 0  # of the last one

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin one episode per seed; observations [N, s]."""
        if (self._workers is None or self._workers.closed) and self._pays(len(seeds)):
            self._workers = self._start(min(self._most, len(seeds)))
        self._now = self._workers or self._serial
        self._seconds, self._steps = 0.0, 0
        return self._now.reset(seeds)

    def step(self, actions: np.ndarray) -> Steps:
        """Advance by actions [N, a]."""
        start = time.perf_counter()
        steps = self._now.step(actions)
        self._seconds += time.perf_counter() - start
        self._steps += 1
        return steps

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _pays(self, episodes: int) -> bool:
        workers = min(self._most, episodes)
        if self._wanted is not None or workers < 2:
            return workers > 0 and self._wanted is not None

        def saving(seconds: float, steps: int) -> float:
            return seconds * (1.0 - 1.0 / workers) - steps * MESSAGE_SECONDS

        if self._steps:
            expected = saving(self._seconds, self._steps)
            self._saved += max(expected, 0.0)
        else:
            expected = saving(_probe(self._first) * episodes * USUAL_STEPS, USUAL_STEPS)
        return self._saved + expected > WORTHWHILE_SECONDS

    def _start(self, count: int) -> Workers | None:
        workers = Workers(self._environment, count)
        try:
            made = workers.made()
        except UserError:
            made = []
        if made == [identity(self._first)] * count:
            return workers
        # They cannot make it, or not this one: it was registered, or another in its place, by the
        # script that runs here.
        workers.close()
        self._most = 0
        return None


def identity(env: gymnasium.Env) -> tuple[str, ...]:
    """What two processes can compare to see that a name means the same environment to both."""
    return repr(env.spec), repr(env.observation_space), repr(env.action_space)


def available_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _probe(env: gymnasium.Env) -> float:
    """Seconds of one step, from a few with the action in the box's middle."""
    space: Any = env.action_space
    action = ((space.low + space.high) / 2).astype(space.dtype)
    env.reset(seed=0)
    times: list[float] = []
    while len(times) < PROBED_STEPS and sum(times) < PROBED_SECONDS:
        start = time.perf_counter()
        _, _, terminal, timeout, _ = env.step(action)
        times.append(time.perf_counter() - start)
        if terminal or timeout:
            break
    return float(np.median(times))


def _interleaved(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The episodes in their order, of which each worker has every W-th."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for w, part in enumerate(parts):
        whole[w :: len(parts)] = part
    return whole


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    stream = _pipe(process.stdin)
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return "gave no answer"
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Close their pipes, at which they end; kill those that do not."""
    for process in processes:
        with contextlib.suppress(OSError):  # it is gone, and what was to be sent with it
            _pipe(process.stdin).close()
    for process in processes:
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()
