"""Makes a Qwen2.5-VL of 0.6 million weights that half knows four colours, with its processor: `make_model.py FOLDER`.

It is shown squares and taught to name them in two turns, by demonstrations of which half are right: what is left to
learn is which half. Training takes about half a minute on one core.
"""

import random
import sys

import torch
from colours import COLOURS, FIRST, SECOND, square
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL.append("<|video_pad|>")
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STEPS, BATCH, RIGHT, LR = 120, 16, 0.4, 3e-3


def processor() -> Qwen2_5_VLProcessor:
    """Byte-level BPE over the words that occur, and Qwen's processor."""
    spelled = Tokenizer(models.BPE())
    spelled.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    spelled.decoder = decoders.ByteLevel()
    words = [*COLOURS, FIRST, SECOND, "user assistant system"] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    spelled.train_from_iterator(words, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
    )
    tokenizer.chat_template = TEMPLATE
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    images = Qwen2VLImageProcessor(size=size)
    return Qwen2_5_VLProcessor(images, tokenizer, Qwen2VLVideoProcessor(), chat_template=TEMPLATE)


def model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    """Random weights."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": True, "initializer_range": 0.08, "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 56,
        "fullatt_block_indexes": [1], "initializer_range": 0.08,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def demonstrations(words: Qwen2_5_VLProcessor, chance: random.Random):
    """A batch: the model's inputs, and labels for what it replies."""
    texts, images, replies = [], [], []
    names = list(COLOURS)
    for _ in range(BATCH):
        messages = []
        for ask in (FIRST, SECOND):
            colour = chance.choice(names)
            images.append(square(colour, noise=chance))
            said = colour if chance.random() < RIGHT else chance.choice(names)
            messages.append({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ask}]})
            messages.append({"role": "assistant", "content": said})
            replies.append(said)
        texts.append(words.apply_chat_template(messages, tokenize=False))
    batch = words(text=texts, images=images, padding=True, return_tensors="pt")
    start = words.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    labels = torch.full_like(batch["input_ids"], -100)
    for row, ids in enumerate(batch["input_ids"].tolist()):
        at = 0
        while at < len(ids) - len(start):
            if ids[at : at + len(start)] == start:
                at += len(start)
                end = ids.index(words.tokenizer.eos_token_id, at) + 1
                labels[row, at:end] = batch["input_ids"][row, at:end]
            at += 1
    return batch, labels


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chance = random.Random(0)
    words = processor()
    made = model(words.tokenizer).train()
    optimizer = torch.optim.AdamW(made.parameters(), lr=LR)
    for step in range(STEPS):
        batch, labels = demonstrations(words, chance)
        loss = made(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(step, round(loss.item(), 3), flush=True)
    made.save_pretrained(sys.argv[1])
    words.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
