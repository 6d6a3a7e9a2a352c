"""A server's error: what it says, whose fault it is, whose account was refused, and what it must not quote."""
