"""A refusal by a server: whose fault it is, and whose account was refused."""
