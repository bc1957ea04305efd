"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {
    "train": "train a policy on logged data, or on the built-in dataset",
    "tasks": "the benchmarks' tasks by name: sizes, reference scores, the paper's settings",
    "algorithms": "the methods by name: their papers, what they constrain, their settings",
    "data": "list, inspect, check and convert datasets",
    "evaluate": "roll out a trained policy and report raw returns and the normalised score",
    "compare": "train several methods side by side and compare their scores",
    "plot": "draw score and λ over the steps of a run",
    "density": "fit behaviour densities and test whether they know data from other actions",
    "collect": "train SAC in a Gymnasium task and record a dataset the way D4RL does",
    "bench": "measure updates per second, tasks, and data larger than memory (speed|tasks|data)",
    "theory": "check the paper's statements exactly on small problems",
}

USAGE = """usage: acpo COMMAND …

Offline reinforcement learning with a constraint dial (λ) that turns itself.

commands:
{commands}

acpo COMMAND --help tells more. Start with: acpo train --steps 20000
"""


def usage() -> str:
    return USAGE.format(commands="\n".join(f"  {name:12}{what}" for name, what in COMMANDS.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 2 for a problem of the user's, 130 when stopped.

    141 where whoever read the output has left.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        from importlib.metadata import version

        print(version("acpo"))
        return 0
    if words[0] not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        print(f"acpo: no command '{words[0]}'.{hint} See acpo --help.", file=sys.stderr)
        return 2
    from acpo.errors import UserError

    try:
        module = importlib.import_module(f"acpo.commands.{words[0]}")
        return module.main(words[1:]) or 0
    except UserError as error:
        print(f"acpo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("acpo: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _reader_left():
            raise
        return 141  # what a shell reports of a program that SIGPIPE ended


def _reader_left() -> bool:
    """Whether standard output is what broke, as in `acpo tasks | head`; if so, write no more to it.

    Otherwise the interpreter would try once more on its way out, and complain.
    """
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
