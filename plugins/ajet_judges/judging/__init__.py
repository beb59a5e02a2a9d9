"""Commands on judges: check against labels, compare, run again over a record, write rubrics."""
