"""What was found out about an object that does not change: a second run of a problem need not find it out again."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")
_KNOWN: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def known(about: Any, question: Hashable, find: Callable[[], Found]) -> Found:
    """Return what `find` returned when the question was first asked about this object; what it raises is not kept.

    The answer must not refer to the object, which it would keep alive.
    """
    answers = _KNOWN.setdefault(about, {})
    if question not in answers:
        answers[question] = find()
    return answers[question]
