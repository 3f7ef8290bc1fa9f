"""The specs that come with the library; apart from `spec`, so that a shell can complete their names without waiting for JAX."""

from importlib import resources
from importlib.resources.abc import Traversable


def built_in() -> dict[str, Traversable]:
    """Return the specs that come with the library, by name."""
    folder = resources.files("fedrzo.running") / "specs"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}
