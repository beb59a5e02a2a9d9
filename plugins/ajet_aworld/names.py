"""`export PYTHONPATH=$(python -m ajet.integration.aworld.names)`, for programs that ajet does not start.

Invariant: nothing imports this module, so that Python runs it without a warning.
"""

from __future__ import annotations

from ajet.integration.aworld.packages import folder

if __name__ == "__main__":
    print(folder())
