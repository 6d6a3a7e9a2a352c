"""How many tokens to draft for the next round: five rules, and what makes any of them steady."""
