"""Which target gets a request, and what a server puts into one batch."""
