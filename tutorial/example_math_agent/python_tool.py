"""The tool of the variants: run Python and say what it printed, as AgentScope's `execute_python_code` does."""

import asyncio
import json
import sys

SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{{}}.
"""
MAX_ITERS = 2
"""Turns in which the agent may call the tool; then it must answer."""
TOOL = {
    "type": "function",
    "function": {
        "name": "execute_python_code",
        "description": "Execute the Python code and get what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code; print what you want to see."}},
            "required": ["code"],
        },
    },
}


async def execute_python_code(code: str, timeout: float = 30.0) -> str:
    """What the code prints, errors included. It runs in a process of its own, with this user's rights."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"The code was stopped after {timeout:.0f} seconds."
    return printed.decode(errors="replace").strip() or "(nothing was printed)"


async def call_tool(arguments: str) -> str:
    """Run the tool with arguments as a model writes them; a mistake is an answer that it can read."""
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError, TypeError):
        return 'The arguments must be {"code": "…"}.'
    return await execute_python_code(str(code))
