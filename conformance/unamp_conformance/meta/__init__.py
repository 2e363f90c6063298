"""The suite itself under test: the adapters' defects that it notices, and how tight it is."""
