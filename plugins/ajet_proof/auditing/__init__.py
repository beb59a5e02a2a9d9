"""`ajet audit`: what fed an update, what an episode fed, and whether all of it is what was committed."""
