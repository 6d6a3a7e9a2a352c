"""Where the model runs: in a thread or in a process of its own."""
