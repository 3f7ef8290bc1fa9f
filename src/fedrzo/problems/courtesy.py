"""Questions that look after a user's mistakes: one that fails by itself is dropped here, and nowhere else.

A run does not need their answers, so that a fault of a question must not break a valid run.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from fedrzo.errors import FedrzoError, first_line
from fedrzo.problems.black_box import telling

Answer = TypeVar("Answer")
LOG = logging.getLogger("fedrzo")
LOUD = [False]  # whether a failing question raises, as in tests


def ask(question: Callable[[], Answer]) -> Answer | None:
    """Return the answer to a question, or None if the question itself fails.

    Errors that are raised on purpose are answers, and so is a black box's; they and Ctrl-C are raised.
    """
    try:
        with telling():
            return question()
    except FedrzoError:
        raise
    except Exception as error:
        if LOUD[0]:
            raise
        LOG.debug("a question before the run was dropped: %s: %s", type(error).__name__, first_line(error))
        return None
