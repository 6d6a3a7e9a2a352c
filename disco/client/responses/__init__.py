"""The Responses API: its requests as chat requests, and answers as its items and events."""
