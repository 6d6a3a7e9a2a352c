"""What generates: models on this machine, behind an API, or made of numbers, under one contract."""
