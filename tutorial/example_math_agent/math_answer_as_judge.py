"""The reward: is the agent's final answer the number at the end of the row's solution?"""

from ajet.task_judge.math_judge import MathAnswerJudge


class MathAnswerAsJudge(MathAnswerJudge):
    """1 where `metadata["final_answer"]` equals what stands after #### in the row's `answer`, 0 where it does not.

    The answer is read out of the last box (the prompt asks for one), <answer> tags or ####, also when the agent hands
    over a list of content blocks; the two are compared as mathematics: 1,234 is 1234 and 0.5 is 1/2. A row without
    an answer gets no score.
    """
