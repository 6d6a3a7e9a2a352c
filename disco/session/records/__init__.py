"""The ledger and the route record of a closed session."""
