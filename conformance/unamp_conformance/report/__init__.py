"""Reports of a run for people and programs: terminal, page, JUnit XML, and comparison of runs."""
