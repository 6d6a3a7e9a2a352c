"""`disco demo`: real endpoints, made to fail before the user's eyes."""
