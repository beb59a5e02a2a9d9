"""An agent for any OpenEnv server: what it is told, and `gym_env`, are all that it knows of it."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class OpenEnvWorkflow(Workflow):
    name: str = "openenv"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client, env = tuner.as_raw_openai_sdk_client(), workflow_task.gym_env
        messages, turns, unclear = [*workflow_task.task.init_messages], 0, 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(messages=messages)
            said = reply.choices[0].message.content or ""
            seen, _, terminated, info = env.step(said)  # a JSON object that fits the server's schema
            turns, unclear = turns + 1, unclear + bool(info.get("invalid_action"))
            if terminated or tuner.get_context_tracker().context_overflow:
                break
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": seen}]
        return WorkflowOutput(log_metrics={"turns": turns, "unclear": unclear})  # no reward: the environment is asked
