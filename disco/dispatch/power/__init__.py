"""What the state of this machine changes in plans: the section [power] and its rule."""
