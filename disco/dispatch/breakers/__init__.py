"""Which endpoints fail: circuit breakers and the health they add up to."""
