"""Federated optimisation of nonsmooth, nonconvex and hierarchical problems from loss values alone.

The public names are listed in `__init__.pyi` and imported when first used, so that the command line and its completion need not
wait for JAX.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
