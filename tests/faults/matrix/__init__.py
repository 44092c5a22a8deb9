"""The failure matrix: what everybody in a flight gets when its upstream call fails; docs/failures.md shows it."""
