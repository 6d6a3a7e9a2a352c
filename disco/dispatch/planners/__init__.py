"""The arithmetic behind policies: quantiles, shares of tokens, optimal waits."""
