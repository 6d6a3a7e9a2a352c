"""Answers that only the server can give: the SDK asks the server its own way, and a record is written beside it."""
