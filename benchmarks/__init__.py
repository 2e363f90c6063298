"""unamp side by side with what a user would write instead: `make bench`."""
