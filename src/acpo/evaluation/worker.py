"""A process that holds some of an evaluation's environments, and advances them when asked.

It is a plain subprocess. A fork of a process that runs JAX's threads may hang, and what
multiprocessing spawns would run a user's script a second time where that has no main guard.
Questions and answers are pickles on its standard streams. It ends when the pipe does, and so
whatever ended the process that asks.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from typing import IO, Any

from acpo.evaluation.environments import Failure, Serial, identity
from acpo.tasks import make_env


def main() -> None:
    """Answer until there are no more questions."""
    # A batch system may send these to every process of a run; the one that asks decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    questions, answers = _streams()
    environments: Serial | None = None
    while True:
        try:
            order, argument = pickle.load(questions)
        except EOFError:
            return
        answer: Any
        try:
            if order == "make":
                first = make_env(argument)
                environments, answer = Serial(argument, first), identity(first)
            else:
                answer = getattr(environments, order)(argument)
        except Exception as error:
            sentence = f"{type(error).__name__}: {error}"
            answer = Failure(sentence, traceback.format_exc())
        try:
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # a plain return would try to write what is left, and complain


def _streams() -> tuple[IO[bytes], IO[bytes]]:
    """The standard streams for our own use: what an environment prints goes to standard error."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return questions, answers
