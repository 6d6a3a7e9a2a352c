"""What answers taught about endpoints: times, lengths, silences, and what a server tells of itself."""
