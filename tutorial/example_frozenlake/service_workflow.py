"""An agent for any environment service. It knows the opening messages and `gym_env`, and nothing of the game."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class ServiceWorkflow(Workflow):
    name: str = "service"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client, env = tuner.as_raw_openai_sdk_client(), workflow_task.gym_env
        messages, turns = [*workflow_task.task.init_messages], 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(messages=messages)
            answer = {"role": "assistant", "content": reply.choices[0].message.content or ""}
            observation, _, terminated, _ = env.step(answer)
            turns += 1
            if terminated or tuner.get_context_tracker().context_overflow:
                break
            messages += [answer, {"role": "user", "content": observation}]
        return WorkflowOutput(log_metrics={"turns": turns})  # no reward: EnvServiceJudge asks the environment
