"""`model.chat_template_kwargs` reaches every prompt of a run."""

from ajet.config import Experiment
from ajet.rollout.components import make_renderer
from tests.support.chat_templates import tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def prompt(tmp_path, **options):
    experiment = Experiment.from_dict({"ajet": {"model": {"chat_template_kwargs": options}}}, base=tmp_path)
    return make_renderer(experiment.ajet, tokenizer("qwen3")).render(MESSAGES).text


def test_an_option_changes_the_prompt_as_the_template_says(tmp_path):
    assert prompt(tmp_path).endswith("<|im_start|>assistant\n")
    assert prompt(tmp_path, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
