"""Replays of a cascade: recorded scores of several tiers, and what each rule would have done with them."""
