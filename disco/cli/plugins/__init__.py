"""`disco plugins`: what installed packages add to disco."""
