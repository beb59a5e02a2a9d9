"""The agent: it reads notes, sums its history up before the context is full, and gives the code."""

from notes import ASK, SUMMARISE, open_history

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class Reader(Workflow):
    """Reads with compaction; every reply is trained, summaries too."""

    name: str = "reader"
    compacts: bool = True

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        reader = tuner.as_raw_openai_sdk_client(agent_name="reader", target_tag="reader")
        summariser = tuner.as_raw_openai_sdk_client(agent_name="reader", target_tag="summary")
        task, limit = workflow_task.task, tuner.config.compaction.limit
        messages, summaries = open_history(), list[str]()
        for text in (*task.metadata["notes"], ASK):
            reply = await reader.chat.completions.create(model="tuned", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            if reply.usage.total_tokens <= limit:
                messages.append({"role": "user", "content": text})
            elif self.compacts:
                messages.append({"role": "user", "content": SUMMARISE})
                reply = await summariser.chat.completions.create(model="tuned", messages=messages)
                summaries.append(reply.choices[0].message.content or "")
                messages = open_history(f"{summaries[-1]}\n{text}")
            else:  # the oldest note and its reply make room
                messages = [*messages[:3], *messages[5:], {"role": "user", "content": text}]
        reply = await reader.chat.completions.create(model="tuned", messages=messages)
        right = reply.choices[0].message.content == task.metadata["code"]
        good = [summary == task.metadata["code"][: 2 * at + 2] for at, summary in enumerate(summaries)]
        numbers = {"summaries": len(summaries), "summaries_right": sum(good) / max(1, len(good))}
        return WorkflowOutput(reward=float(right), is_success=right, log_metrics=numbers)


class ReaderOfUntrainedSummaries(Reader):
    """Reads with compaction; summaries are not trained."""

    trainable_targets: list[str] | None = ["reader"]


class ReaderWithoutSummaries(Reader):
    """Reads without compaction: the oldest notes are dropped."""

    compacts: bool = False
