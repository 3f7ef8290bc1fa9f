"""`check`: look at a problem before it is solved, and say in words what was found."""

from fedrzo.checks.examine import check, usual_method
from fedrzo.checks.report import Finding, Report

__all__ = ["Finding", "Report", "check", "usual_method"]
