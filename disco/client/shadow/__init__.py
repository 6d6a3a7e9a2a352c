"""Shadow mode: what another preset would have done with each answer, without doing it (docs/how-to/shadow.md)."""
