# SPDX-License-Identifier: Apache-2.0
"""Heads of patches, read into author, date and message, and written for Debian.

A head is a mail's, or has the fields of Debian's patch tagging guidelines (DEP-3), or is free text.
No field is lost: what is neither author, date nor subject becomes a trailer of the message. The
fields are read with the standard library's ``email``; python-debian reads them too, but is under
a licence (GPL) that users of this engine would have to take over.
"""

from __future__ import annotations

import email.errors
import email.parser
import email.utils
import re
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from forkpatch.errors import PatchError
from forkpatch.foreign.unified import diff_offset
from forkpatch.git.calls import Git, GitError
from forkpatch.model.mailhead import decoded_words, git_date, made_whole, parse_trailers
from forkpatch.model.patchfile import Patch

STATUS = "Upstream-Status"
NO_DATE = "0 +0000"
_UNKNOWN = "unknown@localhost"
_MBOX = re.compile(r"\AFrom [^\n]*\n")
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]*:(?:[ \t]|$)")
#: Fields with which a head of fields begins; others are free text that has a colon.
_KNOWN = frozenset(
    {
        *("description", "subject", "from", "author", "origin", "forwarded", "bug", "date"),
        *("last-update", "applied-upstream", "reviewed-by", "acked-by", "signed-off-by"),
    }
)
#: Fields of a mail's way through the net, which say nothing about the patch.
_TRANSPORT = frozenset(
    {
        *("mime-version", "content-type", "content-transfer-encoding", "content-disposition"),
        *("content-length", "message-id", "to", "cc", "in-reply-to", "references", "received"),
        *("return-path", "delivered-to", "sender", "reply-to", "list-id", "user-agent", "x-mailer"),
        *("errors-to", "precedence", "status", "lines"),
    }
)
_MAIL = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]*: .*\n(?:[ \t].*\n)*)*(?:From|Subject): ")
_TAG = re.compile(r"^\s*(?:re:\s*)*\[[^\]]*PATCH[^\]]*\]\s*", re.IGNORECASE)
_STAT = re.compile(
    r"^ (?:\S.*\s+\|\s+(?:\d+ [-+]*|Bin .*|\d+)|\d+ files? changed.*|(?:create|delete) mode \d+ .*"
    r"|(?:rename|copy) .* \(\d+%\)|mode change \d+ => \d+ .*)\s*$"
)
_ENCODED = re.compile(
    rb"^Content-Transfer-Encoding:[ \t]*(?:quoted-printable|base64)", re.IGNORECASE | re.MULTILINE
)


def decoded(data: bytes) -> bytes:
    """Return a mailed patch with base64 or quoted-printable decoded; any other as it is.

    Raises:
        PatchError: git cannot decode it.
    """
    end = re.search(rb"\n\r?\n", data)
    if end is None or not _ENCODED.search(data, 0, end.start() + 1):
        return data
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        parts = [Path(name, part) for part in ("message", "patch")]
        try:
            done = Git().run("mailinfo", "-b", "--encoding=UTF-8", *map(str, parts), stdin=data)
        except GitError as error:
            raise PatchError(f"the mail cannot be decoded: {error.what}") from error
        fields = done.stdout.replace(b"Author: ", b"From: ", 1).splitlines()
        address = next((f[7:] for f in fields if f.startswith(b"Email: ")), b"")
        lines = [
            line + b" <%s>" % address if line.startswith(b"From: ") else line
            for line in fields
            if not line.startswith(b"Email: ")
        ]
        message, patch = (part.read_bytes() for part in parts)
    return b"\n".join(lines) + b"\n\n" + message + b"---\n" + patch


def read_head(data: bytes, stem: str) -> Patch:
    """Return a patch with the author, date and message of a head, without name and files.

    Args:
        data: the patch.
        stem: its file's name without number and suffix: the subject of a patch without one.

    Raises:
        PatchError: a date cannot be read, or an author holds a NUL.
    """
    raw = data[: diff_offset(data)]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    text = text.replace("\r\n", "\n")
    whole = _MBOX.match(text) or _is_set_off(text)
    text = _MBOX.sub("", text)
    fields, rest = _fields(text)
    subject, description = _subject(fields)
    body = _body([description, rest])
    if not subject:
        first, _, others = body.partition("\n\n")
        if first and "\n" not in first and not _FIELD.match(first):
            subject, body = first, others
        elif first and not parse_trailers(f"x\n\n{first}"):
            subject, _, others = body.partition("\n")
            body = others.strip("\n")
    words = stem.replace("-", " ").replace("_", " ")
    subject = subject or words[:1].upper() + words[1:]
    author, used = _author(fields)
    date = _date(fields)
    trailers = [
        f"{key}: {_folded(value)}"
        for number, (key, value) in enumerate(fields)
        if number != used and key.lower() not in {"subject", "description", "date", *_TRANSPORT}
    ]
    status = _status(fields, f"{subject}\n\n{body}")
    body = body if whole else _without_derived(body, subject)
    known = parse_trailers(f"{subject}\n\n{body}\n")
    if status and not any(key == STATUS for key, _ in known):
        trailers.append(f"{STATUS}: {status}")
    joint = "\n" if known else "\n\n"
    parts = [part for part in (body, "\n".join(trailers)) if part]
    message = f"{subject}\n\n{joint.join(parts)}".rstrip("\n") + "\n"
    return Patch("", author, date, message, parse_trailers(message), (), "")


def _fields(text: str) -> tuple[list[tuple[str, str]], str]:
    """Return name and value of the fields at the top, none for free text, and the text below."""
    text = text.lstrip("\n")
    name = text.partition(":")[0].lower()
    known = _FIELD.match(text) and (name in _KNOWN or name.startswith("bug-"))
    if not known and not _MAIL.match(text):
        return [], text
    mail = email.parser.Parser().parsestr(text)
    payload = mail.get_payload()
    return [(key, str(value)) for key, value in mail.items()], str(payload)


def _subject(fields: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the subject, else the description's first line, and the rest of the description."""
    found = {key.lower(): value for key, value in reversed(fields)}
    subject = ""
    if "subject" in found:
        subject = _decode(" ".join(found["subject"].split()))
        while (shorter := _TAG.sub("", subject)) != subject:
            subject = shorter
    first, _, rest = found.get("description", "").partition("\n")
    lines = [re.sub(r"^[ \t]", "", line) for line in rest.split("\n")]
    body = "\n".join("" if line.strip() == "." else line.rstrip() for line in lines).strip("\n")
    if subject:
        return subject, "\n".join(part for part in (first.strip(), body) if part)
    if not first.strip() and body:
        first, _, body = body.partition("\n")
    return " ".join(first.split()), body.strip("\n")


def _body(parts: Sequence[str]) -> str:
    """Return free text without git's statistics, with lines indented that would end a message."""
    kept = []
    for part in parts:
        message, *notes = re.split(r"(?m)^---[ \t]*$\n?", part)
        kept.append(message.strip("\n"))
        for note in notes:
            lines = [line for line in note.split("\n") if not _STAT.match(line)]
            kept.append("\n".join(line.rstrip() for line in lines).strip("\n"))
    text = "\n\n".join(part for part in kept if part.strip())
    return made_whole(text)


def _author(fields: Sequence[tuple[str, str]]) -> tuple[str, int]:
    """Return the author, and the index of the field that says no more than that; -1 for none."""
    for number, (key, value) in enumerate(fields):
        if key.lower() not in ("from", "author"):
            continue
        text = _decode(" ".join(value.split()))
        if "\0" in text:
            raise PatchError(f"the author {text[:60]!r} holds a NUL, which git cannot write")
        match = re.fullmatch(r'"?([^<>"]*?)"?\s*<([^<>\s]+)>', text)
        if match and match[1].strip():
            return f"{match[1].strip()} <{match[2]}>", number
        name, address = email.utils.parseaddr(text)
        name = re.sub(r"[<>\n]", "", name or text).strip()
        if "@" in address:
            same = text in (f"{name} <{address}>", f'"{name}" <{address}>')
            return f"{name or address} <{address}>", number if same else -1
        return f"{re.sub('[<>]', '', text).strip() or 'unknown'} <{_UNKNOWN}>", -1
    return f"unknown <{_UNKNOWN}>", -1


def _date(fields: Sequence[tuple[str, str]]) -> str:
    """Return git's date from the field Date, else Last-Update if it can be read, else NO_DATE."""
    found = {key.lower(): value.strip() for key, value in reversed(fields)}
    if "date" in found:
        # Some have a day alone, in the words of mail or by ISO 8601.
        mail = found["date"], f"{found['date']} 00:00"
        try:
            moment = next(filter(None, map(_mail_date, mail)), None) or _day(found["date"])
            return git_date(moment, found["date"])
        except (ValueError, OverflowError) as error:
            raise PatchError(f"the date {found['date'][:60]!r}: {error}") from error
    try:
        return git_date(_day(found.get("last-update", "")), "")
    except (ValueError, OverflowError):
        return NO_DATE


def _mail_date(text: str) -> datetime | None:
    try:
        return email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text.partition(" ")[0])


def _decode(value: str) -> str:
    try:
        return decoded_words(value) if "=?" in value else value
    except (ValueError, LookupError, email.errors.MessageError):
        return value


def _folded(value: str) -> str:
    """Return a field's value as a trailer's: further lines begin with a blank."""
    lines = [line.strip() for line in value.strip().split("\n")]
    return "\n ".join(line or "." for line in lines)


def _status(fields: Sequence[tuple[str, str]], message: str) -> str:
    """Return Upstream-Status, or what DEP-3's ``Forwarded`` and ``Origin`` say of it; or ""."""
    pairs = [*fields, *parse_trailers(f"{message}\n")]
    found = {key.lower(): value.strip() for key, value in reversed(pairs)}
    if STATUS.lower() in found:
        return found[STATUS.lower()]
    forwarded, origin = found.get("forwarded", ""), found.get("origin", "")
    commit = re.search(r"\b[0-9a-f]{7,40}\b", origin)
    if origin.startswith(("upstream", "backport")) and commit:
        return f"Backport [{commit.group()}]"
    if re.match("https?://", forwarded):
        return f"Submitted [{forwarded.split()[0]}]"
    if forwarded.startswith("not-needed"):
        return "Inappropriate [not needed upstream]"
    return "Pending" if forwarded else ""


def derived_fields(trailers: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield DEP-3's Origin and Forwarded from Upstream-Status, if the trailers lack them."""
    known = {key.lower() for key, _ in trailers}
    status = next((value for key, value in reversed(trailers) if key == STATUS), "")
    inner = re.search(r"\[(.*)\]", status)
    if status.startswith("Backport") and inner and "origin" not in known:
        yield f"Origin: backport, {inner[1]}"
    if "forwarded" in known:
        return
    if status.startswith("Submitted") and inner:
        yield f"Forwarded: {inner[1]}"
    elif status.startswith("Inappropriate"):
        yield "Forwarded: not-needed"
    elif status.startswith("Pending"):
        yield "Forwarded: no"


def _without_derived(body: str, subject: str) -> str:
    """Return the text without the fields that an export for Debian put at its end."""
    lines = body.split("\n")
    for count in (2, 1):
        rest = "\n".join(lines[:-count])
        trailers = parse_trailers(f"{subject}\n\n{rest.rstrip()}\n")
        if trailers and list(derived_fields(trailers)) == lines[-count:]:
            return rest.rstrip("\n")
    return body


def _is_set_off(text: str) -> bool:
    """True when an empty line ends the message: its last fields are its own, none was added."""
    end = re.search(r"(?m)^---[ \t]*$", text)
    return end is not None and text[: end.start()].endswith("\n\n")


def dep3_head(patch: Patch) -> bytes:
    """Return a patch's head as DEP-3 has it: a mail's fields, the message, Debian's fields."""
    seconds, _, zone = patch.date.partition(" ")
    hours, minutes = int(zone[:3]), int(zone[0] + zone[3:])
    moment = datetime.fromtimestamp(int(seconds) + hours * 3600 + minutes * 60, UTC)
    day = moment.strftime("%a, %d %b %Y %H:%M:%S")
    subject, _, body = patch.message.partition("\n")
    body = body.strip("\n")
    extra = list(derived_fields(patch.trailers))
    joint = "\n" if patch.trailers else "\n\n"
    text = joint.join(part for part in (body, "\n".join(extra)) if part)
    if _without_derived(text, subject) != body:
        text += "\n"
    head = f"From: {patch.author}\nDate: {day} {zone}\nSubject: {subject}\n\n{text}\n---\n"
    return head.encode("utf-8", "surrogateescape")
