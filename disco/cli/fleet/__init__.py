"""`disco fleet`: fleets of drafters and targets in virtual time, and traces for them from real models."""
