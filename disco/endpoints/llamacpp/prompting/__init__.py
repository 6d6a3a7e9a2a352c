"""From messages and the answer so far to the model's prompt."""
