"""From the model's tokens to text that may be shown."""
