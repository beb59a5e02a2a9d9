"""A taskset of verifiers, written against their package: what is the sum? ajet never imports this file."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(str(self.data.answer) in trace.last_reply.split())


class SumsConfig(vf.TasksetConfig):
    largest: int = 9


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        size = self.config.largest + 1
        for number in range(size * size):
            first, second = divmod(number * 37 % (size * size), size)
            data = SumData(prompt=f"What is {first} + {second}?", answer=first + second)
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
