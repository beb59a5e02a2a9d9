"""A server over pipes that answers with an odd value: hostile_stdio.py KIND PLACE."""

import json
import sys

from tests.mcp_servers.hostile_replies import answer

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"id": asked["id"], **answer(asked["method"], sys.argv[1], sys.argv[2])}), flush=True)
