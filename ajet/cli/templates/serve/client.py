"""An agent not started by ajet: opens an episode, plays the episode, and reports its end.

AJET_ADMIN_KEY=… python client.py http://127.0.0.1:8000 [EPISODES]
"""

import os
import sys

import httpx
from openai import OpenAI

# One worked example: without it this small model never writes a box, and a constant reward of 0 teaches nothing.
EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]


def play(admin):
    """Play one episode with the server's next task. The server's judge decides."""
    opened = admin.post("/episodes", json={}).raise_for_status().json()
    client = OpenAI(base_url=opened["base_url"], api_key=opened["api_key"])
    messages = [*EXAMPLE, {"role": "user", "content": opened["task"]["main_query"]}]
    reply = client.chat.completions.create(model=opened["model"], messages=messages)
    answer = {"final_answer": reply.choices[0].message.content or ""}
    return admin.post(f"/episodes/{opened['episode']}/finish", json={"metadata": answer}).raise_for_status().json()


if __name__ == "__main__":
    key = {"Authorization": f"Bearer {os.environ['AJET_ADMIN_KEY']}"}
    with httpx.Client(base_url=sys.argv[1], headers=key, timeout=600) as admin:
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
            ended = play(admin)
            print(ended["status"], ended["reward"])
