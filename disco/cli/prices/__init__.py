"""`disco prices`."""
