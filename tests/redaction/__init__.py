"""A package, so that its helpers are not looked for in examples/redaction.py."""
