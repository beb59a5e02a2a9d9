"""Coloured squares: what the model is shown and asked."""

import base64
import io
import random

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 60), "blue": (40, 60, 210), "yellow": (220, 210, 40)}
FIRST, SECOND = "Which colour is it?", "And this one?"


def square(colour: str, width: int = 56, height: int = 56, noise: random.Random | None = None):
    """An image of about that colour."""
    from PIL import Image

    noise = noise or random.Random(0)
    near = tuple(min(255, max(0, value + noise.randint(-30, 30))) for value in COLOURS[colour])
    return Image.new("RGB", (width, height), near)


def data_url(image) -> str:
    """The image as clients send it."""
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def question(url: str, text: str) -> dict:
    """A user's turn with an image."""
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }
