"""Makes the model's prompt from messages and the answer so far."""
