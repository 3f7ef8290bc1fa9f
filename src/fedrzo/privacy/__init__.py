"""Differential privacy for records: what is promised, what it costs, and the noisy numbers that clients send.

Not here: what a run makes of it (`fedrzo.running.private`) and the ledger that a deployed node keeps (`fedrzo.deploy.ledger`).
"""
