"""Over worker processes an evaluation gives what it gives in this process, or says why not."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from acpo.errors import UserError
from acpo.evaluation import environments
from acpo.evaluation.environments import Environments, Workers
from acpo.evaluation.rollouts import Evaluator
from acpo.tasks import make_env
from harness import SECONDS, wait_until

# Found by a worker as "clockwork:Clockwork-v0", where this file's folder is on the Python path. It
# prints, as some environments do; its episodes have other lengths; one number breaks it.
CLOCKWORK = """
import gymnasium, numpy as np

class Clockwork(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(20, 40))
        return np.array([self.left, 0.0]), {}

    def step(self, action):
        print("tick")
        if action[0] == 0.5:
            raise ValueError("the spring broke")
        self.left -= 1
        number = self.np_random.normal() + action[0]
        return np.array([self.left, number]), float(number), self.left == 0, False, {}

gymnasium.register("Clockwork-v0", Clockwork)
"""
NAME = "clockwork:Clockwork-v0"


@pytest.fixture
def clockwork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "clockwork.py").write_text(CLOCKWORK)
    monkeypatch.syspath_prepend(tmp_path)
    yield NAME
    sys.modules.pop("clockwork", None)
    gymnasium.registry.pop("Clockwork-v0", None)


def processes(evaluator: Evaluator) -> list[subprocess.Popen[bytes]]:
    workers = evaluator._environments._workers
    return [] if workers is None else list(workers._processes)


def sine(observations: np.ndarray) -> np.ndarray:
    return 0.4 * np.sin(observations[:, :1])


def assert_same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.returns, other.returns)
    np.testing.assert_array_equal(one.lengths, other.lengths)


def test_workers_repeat_the_returns_of_this_process(clockwork: str) -> None:
    """Also for fewer and for more episodes than before, and for fewer than there are workers."""
    policies: list[Callable[..., np.ndarray]] = [sine, lambda s: -sine(s), lambda s: 0.1 * s[:, 1:]]
    with_workers, without = Evaluator(clockwork, 3, workers=2), Evaluator(clockwork, 3, workers=0)
    for some in (policies[:1], policies, policies[1:]):
        assert_same(with_workers(some, seed=4), without(some, seed=4))
    assert len(processes(with_workers)) == 2
    assert not processes(without)
    workers = Workers(clockwork, 2)
    workers.made()
    assert len(workers.reset([7])) == 1
    workers.close()


def test_mujoco_repeats_them_too_and_signals_for_this_process_leave_workers_alone() -> None:
    def policy(observations: np.ndarray) -> np.ndarray:
        return np.tanh(observations[:, -3:])

    evaluator = Evaluator("Hopper-v4", 4, workers=2)
    first = evaluator([policy], seed=0)
    for process in processes(evaluator):
        assert os.getpgid(process.pid) != os.getpgrp()  # a terminal's Ctrl-C does not reach it
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    assert_same(evaluator([policy], seed=0), first)
    assert_same(Evaluator("Hopper-v4", 4, workers=0)([policy], seed=0), first)
    assert len(set(first.lengths.ravel().tolist())) > 1


def test_an_environment_that_fails_says_so_and_where(clockwork: str) -> None:
    evaluator = Evaluator(clockwork, 2, workers=2)
    expected = evaluator([sine], seed=0)
    left = processes(evaluator)
    with pytest.raises(UserError, match=r"Clockwork-v0 failed: ValueError: the spring broke") as e:
        evaluator([lambda s: np.full((len(s), 1), 0.5)], seed=0)
    assert "clockwork.py" in e.value.__notes__[0]
    assert all(process.poll() is not None for process in left)
    assert_same(evaluator([sine], seed=0), expected)


def test_a_worker_that_was_killed_is_an_error_and_the_next_evaluation_has_new_ones(
    clockwork: str,
) -> None:
    evaluator = Evaluator(clockwork, 2, workers=2)
    expected = evaluator([sine], seed=0)
    calls = 0

    def murderer(observations: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 5:
            processes(evaluator)[1].kill()
        return sine(observations)

    with pytest.raises(UserError, match=r"Clockwork-v0 was ended by signal 9"):
        evaluator([murderer], seed=0)
    assert_same(evaluator([sine], seed=0), expected)


def test_an_exception_between_question_and_answer_ends_the_workers(
    clockwork: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C there would leave answers in the pipes to questions that nobody asks again."""
    evaluator = Evaluator(clockwork, 2, workers=2)
    expected = evaluator([sine], seed=0)

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environments.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluator([sine], seed=1)
    assert not processes(evaluator)
    assert_same(evaluator([sine], seed=0), expected)


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_no_process_is_left(clockwork: str, how: str) -> None:
    evaluator = Evaluator(clockwork, 2, workers=2)
    evaluator([sine], seed=0)
    started = processes(evaluator)
    assert [process.poll() for process in started] == [None, None]
    if how == "closed":
        evaluator.close()
    else:
        del evaluator
        gc.collect()
    assert [process.poll() for process in started] == [0, 0]


SCRIPT = """
import signal, sys, time, gymnasium, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from acpo.evaluation.rollouts import Evaluator
print("ran", flush=True)
if sys.argv[1] == "here":
    gymnasium.register("Here-v0", lambda: PendulumEnv(g=2.0), max_episode_steps=30)
    def policy(s): return np.tanh(s[:, :1])
    returns = [Evaluator("Here-v0", 3, workers=w)([policy], 0).returns for w in (0, 2)]
    assert (returns[0] == returns[1]).all()
else:
    def policy(s):
        print("evaluating", flush=True)
        time.sleep(0.05)
        return s[:, :1]
    Evaluator("Pendulum-v1", 3, workers=2)([policy], 0)
print("done", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: int) -> None:
    """Its standard error is theirs too, and is closed only when the last of them has ended."""
    command = [sys.executable, "-c", SCRIPT, "long"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, cwd=tmp_path, **streams)
    assert process.stdout is not None
    wait_until(lambda: "evaluating" in process.stdout.readline(), process)  # type: ignore[union-attr]
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == -number
    assert errors.count("Traceback") == (number == signal.SIGINT)


def test_a_script_that_registers_its_environment_runs_once(tmp_path: Path) -> None:
    """It has no main guard, which multiprocessing would need. Its environment stays with it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "here"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ran", "done"]


def test_a_name_that_means_another_environment_here_is_not_left_to_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gymnasium.envs.registration import EnvSpec

    entry = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
    lighter = EnvSpec("Pendulum-v1", entry, max_episode_steps=20, kwargs={"g": 2.0})
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", lighter)
    evaluator = Evaluator("Pendulum-v1", 2, workers=2)
    found = evaluator([sine], seed=0)
    assert not processes(evaluator)
    assert found.lengths.tolist() == [[20, 20]]
    assert isinstance(make_env("Pendulum-v1").unwrapped, PendulumEnv)


def test_a_worker_imports_neither_jax_nor_what_reads_data() -> None:
    code = """
import sys, acpo.evaluation.worker
from acpo.tasks import make_env
make_env("Hopper-v4")
make_env("d4rl/antmaze-umaze-v2")
print([name for name in ("jax", "polars", "h5py", "torch", "tyro") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Environments]:
    """Environments on two CPUs, of which a step takes that many seconds."""
    monkeypatch.setattr(environments, "available_cpus", lambda: 2)

    def make(seconds: float) -> Environments:
        monkeypatch.setattr(environments, "_probe", lambda _: seconds)
        return Environments("Pendulum-v1", make_env("Pendulum-v1"), workers=None)

    return make


def test_workers_are_started_once_they_pay(rule: Callable[[float], Environments]) -> None:
    """A worker each for two CPUs halves the steps' time, less 1 ms per step for messages."""
    assert not rule(5.8e-4)._pays(10)  # 10 · 1000 · 0.58 ms / 2 − 1 s = 1.9 s
    assert rule(6.2e-4)._pays(10)  # 2.1 s
    assert not rule(1.0)._pays(1)
    assert not rule(1e-5)._pays(10)

    often = rule(1e-5)
    paid = []
    for _ in range(3):
        paid.append(often._pays(10))
        often._seconds, often._steps = 3.8, 1000  # would have saved 0.9 s, and so will the next
    assert paid == [False, False, True]


def test_one_cpu_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "available_cpus", lambda: 1)
    monkeypatch.setattr(environments, "_probe", lambda _: 10.0)
    assert not Environments("Pendulum-v1", make_env("Pendulum-v1"), workers=None)._pays(10)
