"""`disco replay`: what would have been, on a trace of requests or a recording."""
