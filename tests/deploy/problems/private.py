"""The problem of `scalars.py`, but the second client has a set that nobody else knows of."""

import dataclasses

import scalars

import fedrzo as fz

rounds, method, problem, client_data = scalars.rounds, scalars.method, scalars.problem, scalars.client_data


def client_constraint(settings):
    return fz.sets.Box(-0.001, 0.001) if settings["client-id"] == 1 else fz.sets.Reals()


def whole(clients=3):
    nodes = [{"client-id": i} for i in range(clients)]
    return scalars.build([client_data(node) for node in nodes], [client_constraint(node) for node in nodes])


vectors = dataclasses.replace(method, communication="vectors")
