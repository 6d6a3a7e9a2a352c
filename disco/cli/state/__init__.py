"""`disco state`: shows, exports and forgets what clients have learnt."""
