"""What passes between a server and its clients: the protocol, a client's view, directions, estimators. Read `protocol` first."""
