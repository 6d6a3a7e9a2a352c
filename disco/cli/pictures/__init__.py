"""Pictures that the commands make: `disco show`, and `disco demo --svg`."""
