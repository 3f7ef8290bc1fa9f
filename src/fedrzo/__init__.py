"""Federated optimisation of nonsmooth, nonconvex and hierarchical problems from loss values alone.

The public names are listed in `__init__.pyi` and imported when first used, so that the command line and its completion need not
wait for JAX.
"""

import copyreg
import importlib
import sys
import types

import lazy_loader

from fedrzo.errors import nearest

__version__ = "0.1.0"

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Some versions of lazy_loader give this module a type of its own, which Ray could not send with a script's own method.
_own_type = type(sys.modules[__name__])
if _own_type is not types.ModuleType:
    copyreg.pickle(_own_type, lambda module: (importlib.import_module, (module.__name__,)))


def __getattr__(name: str) -> object:
    """Return a public name, importing where it lives; of another, say which one is nearest."""
    if name in __all__:
        return _find(name)
    raise AttributeError(f"{name}: fedrzo has no such name{nearest(name, __all__)}")
