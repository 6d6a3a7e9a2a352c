"""`disco shadow`: what the other preset of a recording in shadow mode would have come to."""
