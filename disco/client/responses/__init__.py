"""The Responses API: from its requests to chat requests, and from answers to its items and events."""
