"""Judges looked at: checked against labels, compared, run again over a record, made of labelled examples."""
