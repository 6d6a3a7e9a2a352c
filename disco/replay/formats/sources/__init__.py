"""Files as batches of columns: CSV, JSON, Parquet."""
