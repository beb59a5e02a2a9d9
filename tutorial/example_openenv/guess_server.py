"""A small server of OpenEnv's protocol, so that the example runs without their package: guess a number from 0 to 9.

`python guess_server.py PORT`. With `openenv` installed, a class of theirs behind its `create_app` does the same."""

import sys

from aiohttp import web

ACTION = {
    "type": "object",
    "properties": {"guess": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["guess"],
    "additionalProperties": False,
}


async def schema(request):
    return web.json_response({"action": ACTION, "observation": {"type": "object"}, "state": {"type": "object"}})


async def health(request):
    return web.json_response({"status": "healthy"})


async def session(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    number = 0
    async for message in socket:
        asked = message.json()
        if asked["type"] == "reset":
            number = asked["data"].get("seed", 0) % 10
            data = {"observation": {"hint": "Guess a number from 0 to 9."}, "reward": None, "done": False}
        elif asked["type"] == "step":
            guess = asked["data"]["guess"]
            hint = "right" if guess == number else "higher" if guess < number else "lower"
            data = {"observation": {"hint": hint}, "reward": float(guess == number), "done": guess == number}
        else:
            break
        await socket.send_json({"type": "observation", "data": data})
    return socket


app = web.Application()
app.add_routes([web.get("/schema", schema), web.get("/health", health), web.get("/ws", session)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
