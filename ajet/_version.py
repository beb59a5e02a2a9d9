"""The version of ajet in a separate module, importable without the lazy names of `ajet`."""

__version__ = "0.1.0"
