"""What is replayed: traces, made-up workloads, and the scenario they are replayed on."""
