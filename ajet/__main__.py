"""`python -m ajet`: the same as the command `ajet`, where its script is not on the path."""

from ajet.cli.launcher import main

if __name__ == "__main__":
    main()
