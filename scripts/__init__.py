"""Tools of the repository. A package, since verl installs one of this name that a plain folder would be hidden by."""
