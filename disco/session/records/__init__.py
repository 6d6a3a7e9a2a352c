"""What is left of a closed session: its charges and its route record."""
