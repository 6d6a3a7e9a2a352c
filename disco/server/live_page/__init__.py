"""The live page of a server: what it shows, and to whom (docs/reference/server.md, "The live page")."""
