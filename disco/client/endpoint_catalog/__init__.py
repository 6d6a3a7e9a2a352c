"""The endpoints of one client: what they are made from, what they cost, what is known of them."""
