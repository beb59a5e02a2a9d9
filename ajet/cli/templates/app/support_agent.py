"""The app, independent of ajet: prints the team for a customer's question.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python support_agent.py "Where is my parcel?"
"""

import os
import sys

import openai

SYSTEM = "You route questions of customers. Answer with one word: account, billing, returns or shipping."


def build_messages(question):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def find_team(question, client):
    reply = client.chat.completions.create(
        model=os.environ.get("OPENAI_MODEL", "default"), messages=build_messages(question), max_tokens=8
    )
    return reply.choices[0].message.content or ""


if __name__ == "__main__":
    print(find_team(" ".join(sys.argv[1:]), openai.OpenAI()))
