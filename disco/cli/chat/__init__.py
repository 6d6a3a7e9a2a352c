"""`disco chat`: ask both models in the terminal."""
