"""Where models come from: found in seconds, or refused in a sentence that says what to do."""

import pytest
import torch

from ajet.engine.model_source import locate
from ajet.engine.models import context_length, load_model, load_tokenizer
from ajet.schema.errors import UserError


def test_an_embedded_model_is_a_folder_that_transformers_loads():
    source = locate("embedded:tiny-tools")
    model = load_model(source, dtype=torch.float32)
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 0.8e6
    assert context_length(model) >= 512
    text = load_tokenizer(source).apply_chat_template(
        [{"role": "user", "content": "What does the eel cost?"}], tokenize=False, add_generation_prompt=True
    )
    assert "What does the eel cost?" in text and text.rstrip().endswith("<|im_start|>assistant")


def test_a_saved_folder_is_found_beside_the_yaml(tmp_path):
    source = locate("embedded:tiny-tools")
    model = load_model(source, dtype=torch.float32)
    model.save_pretrained(tmp_path / "mine")
    load_tokenizer(source).save_pretrained(tmp_path / "mine")
    again = load_model(locate("mine", base=tmp_path), dtype=torch.float32)
    ids = torch.arange(8)[None]
    assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("embedded:tiny-tool", "tiny-tools"),
        ("./no/such/folder", "no/such/folder"),
        ("/no/such/model.gguf", "model.gguf"),
        ("nobody/no-such-model", "nobody/no-such-model"),
    ],
)
def test_what_is_not_there_is_refused(path, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        locate(path, base=tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        load_tokenizer(locate("empty", base=tmp_path))
