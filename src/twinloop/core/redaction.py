"""Remove credentials (passwords, tokens, keys) from text before it is displayed or stored.

Messages of a `TwinloopError`, console output, JSON output and records of runs pass through this module. It removes:

- the user part of a URL (``s3://KEY:SECRET@bucket``);
- the values of settings such as ``token=…``, in a text or in the query of a URL;
- the values after command-line flags such as ``--token``;
- tokens with the format of a known service;
- the values of environment variables whose name indicates a secret;
- every secret that `note_secrets` has found in the arguments of a command, in any later text.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePath
from typing import Any, cast
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
_LEAST = 6  # characters of a value that is removed from any text; shorter ones would match parts of words
_MOST = 1000  # values that are remembered

# Ends of names of settings with a secret value. `--domain-token` is a switch of `twinloop train`.
_NAME = (
    r"(?:(?<!domain[-_])token|secret|passw(?:or)?d|passphrase|signature|credentials?|access[-_]?key(?:[-_]?id)?"
    r"|(?:api|secret|private|account)[-_]?key|(?<![a-z0-9])(?:pwd|sig|sas|jwt|auth|authorization))"
)
# Names that mean a secret in the query of an address or as a flag, but have other meanings in a text.
_SHORT = r"(?:key|pass|code|pwd|sig|sas|jwt|auth)"
_VALUE = r"(?:\"[^\"]+\"|'[^']+'|[^\s&;#\"'<>]+)"
_SETTING = re.compile(rf"({_NAME}\s*=\s*|[?&;#]{_SHORT}=){_VALUE}", re.IGNORECASE)
_ENCODED_SETTING = re.compile(rf"({_NAME}%3D|(?:%3F|%26|%23){_SHORT}%3D)[^\s&;#\"'<>]+", re.IGNORECASE)
_ENTRY = re.compile(rf"({_NAME}[\"']\s*:\s*[\"'])[^\"']+", re.IGNORECASE)
_HEADER = re.compile(
    r"(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|digest|token|negotiate)\s+)?|\bbearer\s+(?=\S{12}))"
    r"[^\s\"',]+",
    re.IGNORECASE,
)
_IS_SECRET = re.compile(rf"[\w.-]*{_NAME}", re.IGNORECASE)
_FLAG = re.compile(rf"-{{1,2}}(?:[\w.-]*{_NAME}|{_SHORT})", re.IGNORECASE)
_FLAG_WITH_VALUE = re.compile(rf"(-{{0,2}}(?:[\w.-]*{_NAME}|{_SHORT})=)(.+)", re.IGNORECASE | re.DOTALL)
_VARIABLE = re.compile(rf"\w*(?:{_NAME}|_key)", re.IGNORECASE)
_KNOWN_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{12,}|\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|ANPA|ANVA|AROA)[A-Z0-9]{12,}\b"
    r"|\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bsk-[\w-]{20,}|\bAIza[\w-]{30,}"
    r"|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_SCHEME = re.compile(r"\b[A-Za-z][A-Za-z0-9+.\-]{1,40}:/+|//")  # pathlib reduces two slashes to one
_ENCODED_USER = re.compile(r"(%3A(?:%2F){1,3})[^\s\"'<>`&?#/]{0,2000}?(?=%40)", re.IGNORECASE)
_BY_SIGN = {"%": (_ENCODED_USER, _ENCODED_SETTING), "=": (_SETTING,), ":": (_ENTRY,)}
_END = re.compile(r"[\s\"'<>`|]|\Z")  # the end of an address within a text
_AUTHORITY = re.compile(r"[^/?#]*")
_HOST_AND_PORT = re.compile(r"(?:localhost|[^:]*\.[^:]*|\[.*):\d{1,5}", re.IGNORECASE)
_BARE = re.compile(r"([^\s:/@]+:(?!/)\S+)(@[^\s@]+)")  # user:password@host without a scheme, as a whole argument

_noted: dict[str, None] = {}


def redact_text(text: str) -> str:
    """Return a text without credentials; if the end of a credential is uncertain, more of the text is removed."""
    return _redact_known(text, _known_values())


def redact_values(value: Any) -> Any:
    """Return a copy of plain values (mappings, lists, texts, paths, numbers) without credentials."""
    return _redact_known_values(value, _known_values())


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command line without credentials, including values after a flag such as ``--token``."""
    known = _known_values()
    return [
        MASK if _follows_flag(before, word) else _redact_word(word, known)
        for before, word in zip(("", *words), words, strict=False)
    ]


def note_secrets(words: Sequence[str]) -> None:
    """Remember the credentials in the arguments of a command, so that they are removed from all later output.

    Libraries may repeat a credential in another encoding. Therefore its URL-encoded and base64 forms are remembered,
    too.
    """
    for before, word in zip(("", *words), words, strict=False):
        for value in (word,) if _follows_flag(before, word) else _find_secrets(word):
            forms = {value, unquote(value), unquote_plus(value), quote(value), quote(value, safe=""), quote_plus(value)}
            _noted.update(dict.fromkeys(form for form in forms if len(form) >= _LEAST))
    for value in list(_noted)[:-_MOST]:
        del _noted[value]


def _redact_known(text: str, known: Iterable[str]) -> str:
    for value in known:
        text = text.replace(value, MASK)
    text = _KNOWN_FORMS.sub(MASK, text)
    if "@" in text:
        text = _remove_users(text)
    for sign, patterns in _BY_SIGN.items():  # most texts have none of these signs
        if sign in text:
            for pattern in patterns:
                text = pattern.sub(rf"\g<1>{MASK}", text)
    return _HEADER.sub(rf"\g<1>{MASK}", text)


def _redact_known_values(value: Any, known: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _redact_known(value, known)
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {
            _redact_known_values(key, known): MASK if _is_secret_entry(key, item) else _redact_known_values(item, known)
            for key, item in entries
        }
    if isinstance(value, list | tuple):
        return [_redact_known_values(item, known) for item in cast("Sequence[Any]", value)]
    return _redact_known(str(value), known) if isinstance(value, PurePath) else value


def _redact_word(word: str, known: Iterable[str]) -> str:
    """Return one command-line argument without credentials; a password in it may contain spaces and quotes.

    Args:
        word: The argument.
        known: Secrets that occurred in earlier arguments; they are removed wherever they occur.
    """
    flag, bare = _FLAG_WITH_VALUE.fullmatch(word), _BARE.fullmatch(word)
    if flag:
        return flag[1] + MASK
    return _redact_known(MASK + bare[2] if bare else _remove_users(word, whole=True), known)


def _remove_users(text: str, *, whole: bool = False) -> str:
    """Replace the user parts of the URLs in a text.

    Args:
        text: Text that may contain URLs.
        whole: Whether the text is a single URL, which may then contain spaces.
    """
    kept, at = list[str](), 0
    for start, end in _find_users(text, whole=whole):
        kept += [text[at:start], MASK]
        at = end
    return "".join((*kept, text[at:]))


def _find_users(text: str, *, whole: bool = False) -> Iterable[tuple[int, int]]:
    """Yield the start and end of the user part of each URL in a text, including URLs within URLs.

    Args:
        text: Text that may contain URLs.
        whole: Whether the text is a single URL, which may then contain spaces.
    """
    at = stop = last = 0
    while (scheme := _SCHEME.search(text, at)) is not None:
        at = scheme.end()
        if at >= stop:
            ending = None if whole else _END.search(text, at)
            stop = len(text) if ending is None else ending.start()
            last = text.rfind("@", at, stop)
        end = _find_user_end(text, at, stop, last)
        if end is not None:
            yield at, end
            at = end


def _find_user_end(text: str, start: int, stop: int, last: int) -> int | None:
    """Return the position of the ``@`` that ends the user part of a URL; None if the URL has no user part.

    RFC 3986 requires that ``/``, ``?``, ``#`` and ``@`` in a password are encoded, but people write them unencoded. If
    the user part has a colon, the last ``@`` of the URL is therefore taken as its end.

    Args:
        text: Text with the URL.
        start: Position after the scheme (``https://``).
        stop: End of the URL.
        last: Position of the last ``@`` of the URL; -1 if there is none.
    """
    place = _AUTHORITY.match(text, start, stop)
    authority = place[0] if place else ""
    user, at, _ = authority.rpartition("@")
    if at and ":" not in user:
        return start + len(user)
    if last > start and (at or (":" in authority and not _HOST_AND_PORT.fullmatch(authority))):
        return last
    return None


def _find_secrets(word: str) -> list[str]:
    """Return the secret values in one command-line argument, in all forms in which a library may repeat them.

    The forms are: as written, URL-decoded, and ``user:password`` as Base64.
    """
    flag = _FLAG_WITH_VALUE.fullmatch(word)
    found = [flag[2]] if flag else list[str]()
    for text in {word, unquote(word)}:
        bare = _BARE.fullmatch(text)
        for user in [text[start:end] for start, end in _find_users(text, whole=True)] + ([bare[1]] if bare else []):
            name, colon, password = user.partition(":")
            # Where a password holds an @, its end is unclear: each possible one counts.
            found += [user, *accumulate((password if colon else name).split("@"), lambda one, other: f"{one}@{other}")]
            found.append(base64.b64encode(unquote(user).encode()).decode())  # as in "Authorization: Basic"
        found += [match[0][len(match[1]) :] for match in _SETTING.finditer(text)]
        found += _KNOWN_FORMS.findall(text)
    return found


def _follows_flag(before: str, word: str) -> bool:
    return _FLAG.fullmatch(before) is not None and not word.startswith("--")


def _is_secret_entry(key: object, item: object) -> bool:
    return isinstance(key, str) and isinstance(item, str) and bool(item) and _IS_SECRET.fullmatch(key) is not None


def _known_values() -> list[str]:
    """Return the secrets to remove from every text, longest first, because a secret may contain another one.

    They are the values of environment variables whose name indicates a secret, except short values and paths, and the
    secrets that `note_secrets` found.
    """
    given = (
        value
        for name, value in os.environ.items()
        if len(value) > _LEAST and not value.startswith("/") and _is_secret_variable(name)
    )
    return sorted({*given, *_noted}, key=len, reverse=True)


@functools.lru_cache(maxsize=4096)
def _is_secret_variable(name: str) -> bool:
    return _VARIABLE.fullmatch(name) is not None
