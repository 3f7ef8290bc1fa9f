"""`solve`: a problem, a time limit, and no hyper-parameter. Methods and their settings are chosen here, not defined."""

from fedrzo.solving.minimize import minimize as minimize
from fedrzo.solving.solve import solve as solve
