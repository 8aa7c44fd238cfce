"""Topics of tests/acceptance and what they share."""
