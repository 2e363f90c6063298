"""`python -m unamp` is the command `unamp`."""

from unamp.cli import main

if __name__ == "__main__":
    main()
