"""Makes a model that knows nothing yet, `make_model.py FOLDER`: a Qwen3 of 0.6 million random weights, and a vocabulary
in which a word and a number are one token each, so that a sum is looked up and not calculated digit by digit."""

import sys

import torch
from demonstrations import demonstrations
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- for message in messages %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
PIECES = r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+"


def vocabulary() -> PreTrainedTokenizerFast:
    """Byte-level BPE over what is asked and answered; anything else is spelled in bytes."""
    spelled = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    spelled.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    spelled.decoder = decoders.ByteLevel()
    shown = (message for row in demonstrations()[:1000] for message in row["messages"])
    texts = [f"{message['role']}\n{message['content']}" for message in shown]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    spelled.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=256
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def main() -> None:
    tokenizer = vocabulary()
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
