"""Event-accurate evaluator: sessions in virtual time."""
