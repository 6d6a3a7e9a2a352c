"""What a fleet consists of and how it works, as a TOML file."""
