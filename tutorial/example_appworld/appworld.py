"""The agent: it is told what the world says, and answers with code."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class AppWorldWorkflow(Workflow):
    name: str = "appworld"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client, env, steps = tuner.as_raw_openai_sdk_client(), workflow_task.gym_env, 0
        messages = [*workflow_task.task.init_messages]
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(messages)
            said = {"role": "assistant", "content": reply.choices[0].message.content or ""}
            obs, _, terminate, _ = env.step(action=said)
            steps += 1
            messages += [said, {"role": "user", "content": obs}]
            if terminate or tuner.get_context_tracker().context_overflow:
                break
        return WorkflowOutput(reward=None, metadata={"total_step": steps})
