"""`fedrzo compare`: several methods on one problem, at equal evaluations and at equal bytes."""
