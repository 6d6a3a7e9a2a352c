"""Drafts of the next tokens of an answer, by the model on this machine."""
