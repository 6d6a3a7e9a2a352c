"""`disco serve`: an OpenAI-compatible server for both models, and with `--verify` a verify server."""
