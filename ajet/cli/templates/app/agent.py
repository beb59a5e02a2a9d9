"""Connects the app to ajet: the agent with the client of the tuned model, and the reward."""

import openai
from support_agent import find_team


def agent(task, tuner):
    endpoint = tuner.as_oai_baseurl_apikey()
    return find_team(task.main_query, openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key))


def reward(task, output):
    """Return (reward, success): 1 for the team in the table, 0 for anything else."""
    is_right = output.metadata["final_answer"].strip(" .\n").lower() == task.metadata["answer"]
    return float(is_right), is_right
