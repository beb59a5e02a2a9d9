"""Commands printed on AWorld's pages, implemented by `ajet env`."""
