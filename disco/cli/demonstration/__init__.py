"""`disco demo`: real endpoints that race, fail, or judge their answers while the user watches."""
