"""The endpoints of one client: how they are made, their prices, and what is known about them."""
