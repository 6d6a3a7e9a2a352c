"""Chat completions: from the SDK's call to a session, and from its answer back to the SDK's objects."""
