"""What proves the tokens of an episode from its calls alone."""
