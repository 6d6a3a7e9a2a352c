"""`disco doctor`: what works on this machine and with this server, what does not, and what to type."""
