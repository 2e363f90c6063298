"""The results of a run for people and programs: terminal, page, JUnit XML, two runs compared."""
