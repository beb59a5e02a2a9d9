"""`python -m ajet`: same as the command `ajet`, for environments without the script on the path."""

from ajet.cli.launcher import main

if __name__ == "__main__":
    main()
