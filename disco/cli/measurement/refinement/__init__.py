"""`disco measure refine`: how much of an answer is left when a prompt is refined."""
