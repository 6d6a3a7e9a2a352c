"""How an answer changes its writer: migration on purpose, failover by need."""
