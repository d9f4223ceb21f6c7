"""Mutations of files: a seed determines each of them."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

FRAGMENTS = (
    *(b"", b"\0", b"\n", b"\r", b"\t", b"\x1b[2J", b'"', b"'", b",", b":", b"{", b"}", b"[", b"]", b"\\", b"#", b"<"),
    *(b"nan", b"NaN", b"Infinity", b"-Infinity", b"inf", b"null", b"true", b"{}", b"[]", b"~", b"&a [*a]", b"<<: *a"),
    *(b"0", b"-1", b"-0", b"1e308", b"1e999", b"0x10", b"1_0", b"9" * 30, b"9" * 5000, b"4294967296", b"2147483648"),
    *(b"18446744073709551616", b"0.5", b"1.5e-320", b"../../etc/passwd", b"/etc/passwd", b"a" * 300, b"\xff\xfe"),
    *(b"\xc3", b"\xed\xa0\x80", "\u202e".encode(), "é".encode(), "\N{GRINNING FACE}".encode(), b"\xef\xbb\xbf"),
    *(b"\\ud800", b"\\u0000", b"!!python/object/apply:os.system [x]", b"<!DOCTYPE a [<!ENTITY b 'c'>]>"),
    *(b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
TOKEN = re.compile(rb'"[^"\n]{0,60}"|[\w.]+')


def mutated(data: bytes, random: Random) -> bytes:
    """Return data with one to four changes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = random.choice((_flip, _flip, _remove, _repeat, _insert, _insert, _cut, _replace_token, _replace_number))(
            data, random
        )
    return data


def mutate_folder(folder: Path, random: Random) -> None:
    """Change one or two files below a folder, or remove one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in random.sample(files, min(len(files), random.choice((1, 1, 1, 2)))):
        action = random.random()
        if action < 0.03:
            path.unlink()
        elif action < 0.06:
            path.write_bytes(random.randbytes(random.randrange(64)))
        elif action < 0.09:
            path.write_bytes(random.choice([one for one in files if one.exists()]).read_bytes())
        else:
            path.write_bytes(mutated(path.read_bytes(), random))


def _place(data: bytes, random: Random) -> int:
    """Choose a position, half of the time in the first kilobyte, where most headers are."""
    return random.randrange(1 + (min(len(data), 1024) if random.random() < 0.5 else len(data)))


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[min(_place(data, random), len(data) - 1)] = random.choice((0, 255, 127, random.randrange(256)))
    return bytes(changed)


def _remove(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + data[place + random.choice((1, 2, 8, 64, 1024)) :]


def _repeat(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    end = place + random.choice((1, 4, 32, 256))
    return data[:end] + data[place:end] * random.choice((1, 2, 50)) + data[end:]


def _insert(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + random.choice(FRAGMENTS) + data[place:]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def _replace(pattern: re.Pattern[bytes], data: bytes, random: Random) -> bytes:
    found = list(pattern.finditer(data[:100_000]))
    if not found:
        return _flip(data, random)
    one = random.choice(found)
    new = random.choice((*FRAGMENTS, random.choice(found)[0], b'"' + random.choice(FRAGMENTS) + b'"'))
    return data[: one.start()] + new + data[one.end() :]


def _replace_token(data: bytes, random: Random) -> bytes:
    return _replace(TOKEN, data, random)


def _replace_number(data: bytes, random: Random) -> bytes:
    return _replace(NUMBER, data, random)
