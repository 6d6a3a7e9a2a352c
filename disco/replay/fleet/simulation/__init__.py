"""The fleet in virtual time: events, servers, links, rounds."""
