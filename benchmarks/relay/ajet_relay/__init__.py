"""A backbone that trains on text: the replies' tokens are encoded anew, as by a relay that sees messages only."""
