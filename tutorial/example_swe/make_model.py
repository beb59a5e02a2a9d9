"""Makes a model that knows nothing yet, `make_model.py FOLDER`: a Qwen3 of 0.6 million random weights. Its vocabulary
has the words of the demonstrations; a number is one token."""

import random
import sys

import torch
from repositories import draw_demonstration
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 640
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- for message in messages %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
PIECES = r" [+*-] [0-9]+| ?[A-Za-z]+\(?| ?-?[0-9]+| +|\n|[^A-Za-z0-9 \n]+"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations."""
    spelled = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    spelled.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    spelled.decoder = decoders.ByteLevel()
    draw = random.Random(1)
    rows = [draw_demonstration(draw)["messages"] for _ in range(1000)]
    texts = [f"{message['role']}\n{message['content']}" for row in rows for message in row]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    spelled.train_from_iterator(texts, trainer)
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
