"""`disco split`: a model cut in two."""
