"""`python -m ajet.launcher`: AgentJet's name of the command."""

from ajet.cli.launcher import main

if __name__ == "__main__":
    main()
