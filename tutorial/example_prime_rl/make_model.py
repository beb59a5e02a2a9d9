"""Makes a model for Wordle that knows nothing yet, `make_model.py FOLDER`: a Qwen3 of 0.7 million random weights. A
word of the list is one token, and so is a letter with its place and mark."""

import random
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from wordle import INVALID, REPEATED, WORDS, build_demonstration, draw_games

VOCABULARY = 1024
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- for message in messages %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
PIECES = r" ?[A-Z][1-5][GYX]|(?:system|user|assistant)\n| ?[A-Za-z]+| ?[0-9]|\n|[^A-Za-z0-9 \n]| "


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations until each of their pieces is one token."""
    spelled = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    spelled.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    spelled.decoder = decoders.ByteLevel()
    draw, games = random.Random(1), draw_games()["train"]
    rows = [build_demonstration(draw, games)["messages"] for _ in range(4000)]
    texts = [f"{message['role']}\n{message['content']}" for row in rows for message in row]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    spelled.train_from_iterator([*texts, *[INVALID, REPEATED, *WORDS] * 2], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=256
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def main() -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=256,
        initializer_range=0.08,  # at this width 0.02 learns slowly or not at all
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(sys.argv[1])
    tokenizer.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
