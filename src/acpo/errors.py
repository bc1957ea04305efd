"""The kind of error a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """A problem the user can mend.

    The message is one or two sentences: what is wrong, in which file, row or field, and what to
    do about it. The command line prints it without a traceback and exits with code 2.
    """


class Diverged(UserError):  # noqa: N818 -- a state of the run, as in "the run diverged"
    """A run was stopped because its numbers no longer mean anything."""
