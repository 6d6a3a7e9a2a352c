"""`Disco`, the synchronous client: `AsyncDisco` on an event loop of its own."""
