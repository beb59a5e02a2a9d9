"""Requests that cost a server much more than their bytes."""


def lattice(levels):
    """A schema of some 2 kB with 2 ** levels paths through its references."""
    steps = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"type": "object", "$ref": "#/$defs/a0", "$defs": {**steps, f"a{levels}": {"type": "object"}}}


def objects(size):
    """A JSON list of `size` bytes, about, of empty objects."""
    return b"[" + b",".join([b"{}"] * (size // 3)) + b"]"
