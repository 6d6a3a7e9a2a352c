"""The event-accurate evaluator: sessions in virtual time."""
