"""`disco adapter`: trains what drafts for a model cut in two."""
