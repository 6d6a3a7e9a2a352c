"""Where the model runs: a thread of its own, or a process of its own."""
