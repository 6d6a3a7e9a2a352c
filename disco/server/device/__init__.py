"""The model on this machine for the other programs of its user: proof of identity, and answers past the routing."""
