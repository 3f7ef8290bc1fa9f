"""What can go wrong, each with one clear line.

A message names the argument, says what was found and what to do. `InputError` is raised before any work starts.
"""

import difflib
import os
import sys
import warnings
from collections.abc import Iterable

HERE = os.path.join(os.path.dirname(__file__), "")


class FedrzoError(Exception):
    """Base of every error that this library raises on purpose."""


class InputError(FedrzoError, ValueError):
    """An argument cannot be used; nothing was started or written."""


class SignatureError(InputError, TypeError):
    """An argument is misspelt, missing or one too many: what Python itself calls a TypeError."""


class MissingDataError(InputError):
    """A data set is not on this machine, and could not be brought here; the message says where to get it."""


class MissingExtraError(FedrzoError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class BlackboxError(FedrzoError):
    """A black box raised an error, which is the cause of this one, or returned what is not a loss."""


class CheckpointError(FedrzoError):
    """A checkpoint cannot be read, or belongs to another run."""


class DivergedError(FedrzoError):
    """The iterate became non-finite, or left its start for good; the message names the round."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line from which this library was called, however many calls of its own lie between."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next(filter(None, lines), "no message")


def nearest(name: str, known: Iterable[str], listed_by: str = "") -> str:
    """Return a hint such as `; did you mean 'stepsize'?`, or the list of known names.

    If they are too many for a line, `listed_by` is the command that lists them. The hint then has the nearest names and that.
    """
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not listed_by:
        return f"; known: {', '.join(options)}"
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.3)
    return "".join([f"; the nearest names are {', '.join(near)}" if near else "", f"; `{listed_by}` has all"])
