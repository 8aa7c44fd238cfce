"""Topics of tests/acceptance and their shared code."""
