"""The names that AWorld's pages print. They only call `ajet env`."""
