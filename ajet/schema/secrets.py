"""Detect secrets, for record, configuration and commands (DESIGN decision 16).

Invariant: a secret is detected by name or by shape, only in this module. Names are split into words, so `accessToken`,
`DB_PASS`, `x-api-key` and `PGPASSWORD` match. Shapes are user information in URLs (`https://user:password@host`) and
keys of well-known services.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _split_words(
    "pass password passwords passwd passphrase passcode pwd pat auth authorization authorisation bearer cookie "
    "cookies credential credentials creds dsn jwt psk secret secrets token webhook webhooks apikey apikeys"
)
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "credential", "credentials", "accesstoken")
_SHOUTED_ENDINGS = (*_ENDINGS, "key", "token", "auth", "pass", "pat")
"""Endings of variables, whose words may be joined (PGPASSWORD, OPENAIKEY, MYAUTH)."""
_KEYS_OF = _split_words(
    "access account admin api app auth client crypt deploy encryption license licence master private secret "
    "service session signing ssh storage subscription x"
)
"""Words before `key` in names of secrets. `prompt_key` and `answer_key` are column names."""
_NO_TOKENS_OF = _split_words(
    "bos eos pad unk sep cls mask special stop end start begin image video audio vision tool think max min num "
    "per first last next new total"
)
"""Words before `token` that mean a piece of text."""
_ABOUT = _split_words(
    "path paths file files dir directory folder env name names type kind mode method count level limit len length "
    "size max min n k rate at ttl timeout expiry sock socket host port"
)
"""Last words of names describing a secret without holding a value."""
_NO_SECRETS = frozenset({"PWD", "OLDPWD", "XAUTHORITY", "XMODIFIERS", "GIT_ASKPASS", "SSH_ASKPASS"})

_USER_INFORMATION = (
    r"://(?:[^\s/?#@:\"'<>\\\[\]]{0,256}:(?!\$?\{[^\s{}]*\}@|\*+@)[^\s/?#@\"'<>\\\[\]]{1,512}"
    r"|(?!\$?\{)[^\s/?#@:\"'<>\\\[\]]{20,512})(?=@)"
)
# Each shape matches in linear time on any text: possessive and atomic groups prevent backtracking.
_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("://",), _USER_INFORMATION),
    (("sk-", "pk-", "rk-"), r"(?<![\w-])(?:sk|rk|pk)-(?=[\w-]{0,256}\d)[\w-]{20,512}"),
    (
        ("sk_live_", "sk_test_", "rk_live_", "whsec_"),
        r"\b(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,256}",
    ),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{20,256}"),
    (("github_pat_", "glpat-"), r"\b(?:github_pat_|glpat-)[\w-]{20,256}"),
    (("hf_", "npm_"), r"\b(?:hf|npm)_[A-Za-z0-9]{20,256}"),
    (("AKIA", "ASIA"), r"\bA(?:K|S)IA[A-Z0-9]{16}\b"),
    (("AIza",), r"\bAIza[\w-]{35}"),
    ((*(f"xox{kind}-" for kind in "abeoprs"), "xapp-"), r"\bx(?:ox[abeoprs]|app)-[\w-]{10,512}"),
    (("pypi-",), r"\bpypi-[\w-]{40,512}"),
    (("eyJ",), r"(?<![\w-])(?>[\w-]*?\b(?=eyJ))\K[\w-]{13,}+\.eyJ[\w-]{4,}+\.[\w-]{10,4096}"),
    (("hooks.slack.com/",), r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/-]{10,256}"),
    (("/api/webhooks/",), r"(?<=/api/webhooks/)\d{5,32}/[\w-]{10,256}"),
    (
        (" PRIVATE KEY-----",),
        r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?:[\w+/=\s\\]|-(?!----)){16,16384}+"
        r"-----END [A-Z ]{0,32}PRIVATE KEY-----",
    ),
)
_RARE_CHARACTERS = "_-/JI"
"""Each mark has at least one of the characters. Splitting a text at rare characters gives few parts."""


def _index_marks_by_character() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Group the marks of all secret shapes by a rare character that each contains.

    Returns:
        By character: the text before the character in each mark, and the marks. A text without any of these characters
        holds no mark, so that most texts are decided by a few fast searches.
    """
    by_character: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for mark in (mark for marks, _ in _SHAPES for mark in marks):
        char = next(char for char in _RARE_CHARACTERS if char in mark)
        before, marks = by_character.get(char, ((), ()))
        by_character[char] = (*before, max(mark.split(char)[:-1], key=len)), (*marks, mark)
    return by_character


_MARKS_BY_CHARACTER = _index_marks_by_character()
_LONG_CHARS, _LONGEST_MARK = 1 << 20, 32
"""Longer texts are searched in pieces without the interpreter's lock, so that other threads run meanwhile."""


def is_secret_name(name: str) -> bool:
    """Return True if the value under this name of a variable or key is a secret.

    False for names that end in a place or property of the secret (`HF_TOKEN_PATH`, `api_key_env`), for pieces of text
    (`eos_token`, `max_tokens`) and for columns (`prompt_key`).
    """
    if name.upper() in _NO_SECRETS:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    is_upper = name.isupper()
    for index, word in enumerate(words):
        previous_word = words[index - 1] if index else ""
        if word in ("key", "keys", "tokens"):
            if is_upper or previous_word in _KEYS_OF:
                return True
        elif word == "token":
            if previous_word not in _NO_TOKENS_OF and (
                is_upper or index == len(words) - 1 or previous_word in _KEYS_OF
            ):
                return True
        elif word in _SECRET_WORDS:
            return True
    # Joined words such as PGPASSWORD, of which the splitting sees one.
    return len(words[-1]) > 4 and words[-1].endswith(_SHOUTED_ENDINGS if is_upper else _ENDINGS)


def has_secret_shape(text: str) -> bool:
    """Return True if a text contains a URL with user information, or a key of a known service."""
    return has_mark(text) and any(
        _compile_shape(shape).search(text, concurrent=len(text) > _LONG_CHARS)
        for marks, shape in _SHAPES
        if any(mark in text for mark in marks)
    )


def replace_secret_shapes(text: str, put: str | Callable[[str], str]) -> str:
    """Return the text with each detected secret replaced, or the same object if there is none.

    Args:
        put: The replacement, or a function from secret to replacement.
    """
    if not has_mark(text):
        return text
    for marks, shape in _SHAPES:
        if any(mark in text for mark in marks):
            is_long = len(text) > _LONG_CHARS
            text = _compile_shape(shape).sub(
                lambda found: _replace_secret(found.group(), put), text, concurrent=is_long
            )
    return text


def list_secret_parts(text: str) -> list[str]:
    """Return the parts of a secret to hide separately: a URL's password, the text after `Bearer` or `Basic`."""
    user_parts = [match.group().removeprefix("://") for match in _compile_shape(_USER_INFORMATION).finditer(text)]
    secret_parts = [part.partition(":")[2] or part for part in user_parts]
    scheme, _, credential = text.strip().partition(" ")
    if scheme.lower() in ("bearer", "basic", "token") and credential.strip():
        secret_parts.append(credential.strip())
    return secret_parts


def has_mark(text: str) -> bool:
    """Return False if the text surely contains no secret shape, after a search for the shapes' fixed beginnings.

    Searches all marks at once by their rare characters: a search for each mark takes three times as long.
    """
    starts = range(0, len(text), _LONG_CHARS)
    return any(_holds_mark(text[start : start + _LONG_CHARS + _LONGEST_MARK]) for start in starts)


def _holds_mark(text: str) -> bool:
    """Return True if a piece of text contains a mark. Splits it at rare characters to exclude most texts quickly."""
    return any(
        any(mark in text for mark in marks)
        for char, (texts_before, marks) in _MARKS_BY_CHARACTER.items()
        if char in text and any(part.endswith(texts_before) for part in text.split(char))
    )


@cache
def _compile_shape(shape: str) -> regex.Pattern[str]:
    import regex  # slow to load, and most texts hold no mark

    return regex.compile(shape)


def _replace_secret(found: str, put: str | Callable[[str], str]) -> str:
    """Return the replacement of a match. A URL's `://` at its beginning stays, because only what follows is secret."""
    prefix = "://" if found.startswith("://") else ""
    return prefix + (put if isinstance(put, str) else put(found.removeprefix(prefix)))
