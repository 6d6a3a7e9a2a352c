"""`disco demo`: real endpoints that fail while the user watches."""
