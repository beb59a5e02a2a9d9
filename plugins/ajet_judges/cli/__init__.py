"""The commands `judge` and `rejudge`."""
