"""Which endpoints fail: circuit breakers, and the health of all endpoints of a client."""
