"""Deployment on Flower: an app for a user's problem file, the nodes' and the server's side, a federation on one machine.

Data and sets stay on the nodes: `node.py` is what runs there, `server.py` what runs in the middle. `fedrzo.engines.flower`
carries the messages.
"""
