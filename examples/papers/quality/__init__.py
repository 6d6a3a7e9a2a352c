"""Answers that one model began and another ended: how good they are beside either model's own."""
