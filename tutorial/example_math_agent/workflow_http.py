"""The same agent over plain HTTP: what an agent in another language or another process does."""

import httpx
from python_tool import MAX_ITERS, SYSTEM_PROMPT, TOOL, call_tool

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class MathAgentWorkflow(Workflow):
    name: str = "math_agent_http"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        endpoint = tuner.as_oai_baseurl_apikey()
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        async with httpx.AsyncClient(base_url=endpoint.base_url, headers=headers, timeout=None) as client:
            for turn in range(MAX_ITERS + 1):
                request = {"model": endpoint.model, "messages": messages, "tools": [TOOL]}
                response = await client.post("/chat/completions", json=request)
                response.raise_for_status()
                message = response.json()["choices"][0]["message"]
                calls = message.get("tool_calls") or []
                if not calls or turn == MAX_ITERS:
                    break
                messages.append(message)
                for call in calls:
                    result = await call_tool(call["function"]["arguments"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return WorkflowOutput(metadata={"final_answer": message["content"]})
