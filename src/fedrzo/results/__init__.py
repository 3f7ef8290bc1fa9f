"""What runs return, as text, figures and files."""

from fedrzo.results import plots

__all__ = ["plots"]
