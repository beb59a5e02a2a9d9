"""Another name of `ajet.backbone.verl.cluster.leftovers`, for batch scripts that were written with it."""

import sys

from ajet.backbone.verl.cluster.leftovers import beside

if __name__ == "__main__":
    sys.exit(beside(sys.argv[1:]))
