"""The results of a run shown to people and to other programs: on a terminal, as a page, as JUnit XML, two runs side by side."""
