"""`disco speculate`: whether drafting for a server pays."""
