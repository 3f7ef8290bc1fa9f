"""Optional dependencies, imported when first needed."""

import importlib
from typing import Any

from fedrzo.errors import MissingExtraError


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.split(".")[0]):
            raise  # the module is there, something that it needs is not: that is another mistake
        raise MissingExtraError(f"{module} is not installed; run: pip install 'fedrzo[{extra}]'") from None
