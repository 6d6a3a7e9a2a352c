"""What a client learns, and what the other programs of the user have learnt: the client's side of the state file."""
