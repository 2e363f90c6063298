"""The suite itself under test: which defects of an adapter it notices, and how tight its bounds are."""
