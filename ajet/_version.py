"""The version of ajet, in a module of its own: what imports it does not import the lazy names of `ajet`."""

__version__ = "0.1.0"
