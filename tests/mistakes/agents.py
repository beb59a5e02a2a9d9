"""Mistakes in the agent's code, 15 to 30."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.project import AGENT, YAML

DEBUG = "ajet --conf m.yaml --backbone debug"
REWARD = AGENT[AGENT.index("def reward") :]


def change(old: str, new: str, before: str = "") -> dict[str, str | bytes]:
    """Return the files of a project whose agent has `new` instead of `old`."""
    assert old in AGENT
    return {"agent.py": before + AGENT.replace(old, new)}


def agent(source: str) -> dict[str, str | bytes]:
    """Return the files of a project with this agent and the usual reward."""
    return {"agent.py": f"{source}\n\n\n{REWARD}"}


CLIENT = "    client = tuner.as_raw_openai_sdk_client()\n"
SYNC = """\
import openai


def agent(task, tuner):
    endpoint = tuner.as_oai_baseurl_apikey()
    client = openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = [{"role": "user", "content": task.main_query}]
    reply = client.chat.completions.create(model="m", messages=messages)
    return reply.choices[0].message.content
"""
OWN_CLIENT = """\
import openai


def agent(task, tuner):
    try:
        client = openai.OpenAI(%s)
        messages = [{"role": "user", "content": task.main_query}]
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content
    except openai.OpenAIError:
        return "sorry"
"""

QUERY = '    import sqlite3\n\n    sqlite3.connect(":memory:").execute("select * from orders")\n'
TWO_OTHERS = """\
async def agent(question, client):
    messages = [{"role": "user", "content": question}]
    reply = await client.chat.completions.create(messages=messages)
    return reply.choices[0].message.content
"""

MISTAKES = (
    Mistake(
        15, "an own client with an own key, and an except around it",
        "no model call reached ajet, and what to give the client", (DEBUG,),
        shows=("no_model_call", "as_oai_baseurl_apikey"),
        files=agent(OWN_CLIENT % 'base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0'),
    ),
    Mistake(
        16, "OPENAI_API_KEY and OPENAI_BASE_URL are set and the agent uses OpenAI()",
        "no model call reached ajet, and what to give the client", (DEBUG,),
        shows=("without a model call", "as_oai_baseurl_apikey", "unset OPENAI_BASE_URL"),
        hides=("a command finds",),
        files=agent(OWN_CLIENT % "max_retries=0"),
        variables={"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
    ),
    Mistake(
        17, "the agent prints colours and carriage returns",
        "the panels are shown, and the output is recorded", (DEBUG,), code=0,
        shows=("attempt 0", "attempt 1"),
        files=change(CLIENT, f'{CLIENT}    print("\\x1b[31mred\\x1b[0m\\rworking", end="")\n'),
    ),
    Mistake(
        18, "the history is in a list of the module, shared by the attempts",
        "debug says that an attempt's request holds another task's text", (
            "ajet --conf m.yaml --backbone debug debug.debug_first_n_tasks=2",), code=0, shows=("agent.py", "share a"),
        files=change(
            '    messages = [{"role": "user", "content": task.main_query}]\n',
            '    HISTORY.append({"role": "user", "content": task.main_query})\n    messages = HISTORY\n',
            before="HISTORY = []\n\n\n",
        ),
    ),
    Mistake(
        19, "the client is cached in the module",
        "the mistake and its cure", (f"{DEBUG} debug.debug_max_parallel=1",), code=0, shows=("another attempt",),
        files=change(CLIENT, "    global CLIENT\n    CLIENT = CLIENT or tuner.as_raw_openai_sdk_client()\n"
                             "    client = CLIENT\n", before="CLIENT = None\n\n\n"),
    ),
    Mistake(
        20, "input() in the agent", "the line, and that there is no terminal", (DEBUG,),
        shows=("EOFError", "agent.py:2", "keyboard", "task.metadata"),
        files=change(CLIENT, f'    input("go on? ")\n{CLIENT}'),
    ),
    Mistake(
        21, "a tool that raises an error of its library", "the line and the error", (DEBUG,),
        shows=("OperationalError", "agent.py"),
        files=change(CLIENT, f"{QUERY}{CLIENT}"),
    ),
    Mistake(
        22, "messages is a text, behind an except that hides the refusal", "the refusal, and that it was hidden",
        (DEBUG,), shows=("messages", "except"),
        files=agent(SYNC.replace("messages=messages", 'messages="hello"').replace(
            "    reply = client", "    try:\n        reply = client").replace(
            "    return reply", '    except openai.OpenAIError:\n        return ""\n    return reply')),
    ),
    Mistake(
        23, "the client passes temperature=0", "the run's temperature is used instead, said once with its key",
        (DEBUG,), code=0, shows=("temperature", "rollout.temperature"),
        files=change("max_tokens=8", "max_tokens=8, temperature=0"),
    ),
    Mistake(
        24, 'task["question"]', "the line, and that the columns of a row are in task.metadata", (DEBUG,),
        shows=("agent.py:3", "task.metadata"), files=change("task.main_query", 'task["question"]'),
    ),
    Mistake(
        25, "the agent returns the ChatCompletion", "what to return", (DEBUG,),
        shows=("ChatCompletion", "final_answer"), files=change("reply.choices[0].message.content or \"\"", "reply"),
    ),
    Mistake(
        26, "the agent returns (answer, reward)", "the order to write", (DEBUG,),
        shows=("tuple", "WorkflowOutput(reward=1.0, metadata={'final_answer': answer})"),
        files=change('return reply.choices[0].message.content or ""',
                     'return reply.choices[0].message.content or "", 1.0'),
    ),
    Mistake(
        27, "a function without async uses the AsyncOpenAI",
        "an await is missing; what a synchronous agent uses", (DEBUG,),
        shows=("agent.py:4", "async def agent"), hides=("never awaited",),
        files={"agent.py": AGENT.replace("async def", "def").replace("await ", "")},
    ),
    Mistake(
        28, "agent(tuner, task)", "the order to write", (DEBUG,), shows=("agent.py", "(task, tuner)"),
        files=change("agent(task, tuner)", "agent(tuner, task)"),
    ),
    Mistake(
        29, "agent(question, client)", "what the two arguments are", (DEBUG,),
        shows=("agent(question, client)", "question.main_query", "client.as_raw_openai_sdk_client()"),
        files=agent(TWO_OTHERS.rstrip()),
    ),
    Mistake(
        30, "replies are cut at two tokens", "the panel marks the cut reply, the verdict counts them", (DEBUG,), code=0,
        shows=("2 of 2", "raise ajet.rollout.max_response_length_in_one_turn (now 2)"),
        files={**change(", max_tokens=8", ""),
               "m.yaml": YAML.replace("max_response_length_in_one_turn: 8", "max_response_length_in_one_turn: 2")},
    ),
)  # fmt: skip
