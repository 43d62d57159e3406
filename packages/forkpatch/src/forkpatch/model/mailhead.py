# SPDX-License-Identifier: Apache-2.0
"""The part of a patch file before its diff: a mail's headers, and a commit's message."""

from __future__ import annotations

import email.errors
import email.header
import email.parser
import email.utils
import re
from datetime import UTC, datetime

from forkpatch.errors import PatchError

_SUBJECT_TAG = re.compile(r"^\s*\[PATCH[^\]]*\]\s*")
# The last begins the next mail of a mailbox.
_ENDS_MESSAGE = re.compile(
    r"^(?=---[ \t]*$|diff -|Index: |From \S+ .*\d:\d\d:\d\d .*\d{4}$)", re.MULTILINE
)
_TRAILER = re.compile(r"^([A-Za-z][A-Za-z0-9-]*): (.*)$")


def parse_head(head: bytes, where: str) -> tuple[str, str, str]:
    """Return author, date and message, in the forms of Patch, from a mail's text before its diff.

    Raises:
        PatchError: the text is not a mail's head.
    """
    if head.startswith(b"From "):
        head = head.partition(b"\n")[2]
    mail = email.parser.BytesParser().parsebytes(head)
    headers = dict(reversed([(key.title(), value) for key, value in mail.raw_items()]))
    missing = [key for key in ("From", "Date", "Subject") if key not in headers]
    if missing:
        raise PatchError(
            f"{where}:1: no {missing[0]} header: it is not in git's mailbox format",
            remedy="make it with git format-patch, or with the verb export",
        )
    # Not email.utils.parseaddr: an address in git can be anything, as in root@(none).
    match = re.fullmatch(r"\s*(.*?)\s*<([^<>]+)>\s*", _text(headers["From"]), re.DOTALL)
    name, address = (email.utils.unquote(match[1]), match[2]) if match else ("", "")
    name = _decode(name, where)
    if not address or re.search("[<>\n\0]", name + address):
        raise PatchError(
            f"{where}: the From header is not 'Name <email>'", remedy="write it in that form"
        )
    subject = _SUBJECT_TAG.sub("", _decode(_text(headers["Subject"]), where))
    payload = mail.get_payload(decode=True)
    body = payload.decode("utf-8", "surrogateescape") if isinstance(payload, bytes) else ""
    body = re.sub(r"(^|\n)---\n(.*)\Z", r"\1", body, flags=re.DOTALL).strip("\n")
    message = f"{subject}\n\n{body}\n" if body else f"{subject}\n"
    return f"{name} <{address}>", _git_date(_text(headers["Date"]), where), message


def _text(value: object) -> str:
    """Return a header's value on one line; keep plain UTF-8 in it, which ``mail[key]`` loses."""
    text = str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return re.sub(r"\r?\n(?=[ \t])", "", text)


def _decode(value: str, where: str) -> str:
    try:
        return decoded_words(value)
    except (ValueError, LookupError, email.errors.MessageError) as error:
        raise PatchError(
            f"{where}: header {value[:80]!r}: {error}",
            remedy="write it as plain UTF-8, or as git format-patch does",
        ) from error


def decoded_words(value: str) -> str:
    """Return a header with its encoded words decoded."""
    return str(email.header.make_header(email.header.decode_header(value)))


def _git_date(value: str, where: str) -> str:
    try:
        return git_date(email.utils.parsedate_to_datetime(value), value)
    except (ValueError, OverflowError, TypeError) as error:
        raise PatchError(
            f"{where}: Date {value[:80]!r}: {error}",
            remedy="write it as in: Mon, 2 Nov 2026 09:30:00 +0000",
        ) from error


def git_date(moment: datetime, text: str) -> str:
    """Return a date as git stores it: seconds since 1970, and the zone at ``text``'s end or +0000.

    Raises:
        ValueError: git has no such date.
    """
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if (seconds := int(moment.timestamp())) < 0:
        raise ValueError("git has no dates before 1970")
    zone = re.search(r"([+-][0-9]{4})\s*(?:\(.*\))?$", text)
    return f"{seconds} {zone[1] if zone else '+0000'}"


def ending_line(message: str) -> str | None:
    """Return the first line that would end the message in a patch file; None without one."""
    found = _ENDS_MESSAGE.search(message)
    return message[found.start() :].partition("\n")[0] if found else None


def made_whole(message: str) -> str:
    """A message with each line that would end it in a patch file indented by a blank."""
    return _ENDS_MESSAGE.sub(" ", message)


def parse_trailers(message: str) -> tuple[tuple[str, str], ...]:
    """Return the ``Key: value`` pairs of the last paragraph; none if it has another line."""
    paragraphs = message.strip("\n").split("\n\n")
    if len(paragraphs) < 2:
        return ()
    trailers: list[tuple[str, str]] = []
    for line in paragraphs[-1].split("\n"):
        match = _TRAILER.match(line)
        if match:
            trailers.append((match.group(1), match.group(2).strip()))
        elif line[:1] in (" ", "\t") and trailers:
            key, value = trailers[-1]
            trailers[-1] = (key, f"{value} {line.strip()}")
        else:
            return ()
    return tuple(trailers)
