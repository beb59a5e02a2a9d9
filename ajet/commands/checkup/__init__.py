"""checkup: what `ajet doctor` looks at, a topic a file; each answers `Finding`s and raises none of what it finds."""
