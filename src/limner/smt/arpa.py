"""Language models in ARPA files, which KenLM, SRILM and Moses read and write."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from limner.errors import RunError, system_reason
from limner.files import read_bytes, write_text
from limner.smt.language_model import IMPOSSIBLE, LanguageModel
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS

LN10 = float(np.log(10))
_GZIP = b"\x1f\x8b"
BLANKS = " \t\r"
"""Characters between the fields of a line; words can have other kinds of spaces."""
_BETWEEN, _HEADER, _COUNT = (
    re.compile(f"[{BLANKS}]+"),
    re.compile(r"\\(\d{1,9})-grams:"),
    re.compile(rf"ngram[{BLANKS}]+(\d{{1,9}})[{BLANKS}]*=[{BLANKS}]*(\d{{1,18}})"),
)


def write_arpa(model: LanguageModel, entries: Sequence[str], path: Path) -> None:
    """Write a model; words are the entries of its vocabulary, without <pad>."""
    lengths = np.ones(len(model.firsts), dtype=np.int64)
    for node in range(model.vocab_size, len(lengths)):
        lengths[node] = lengths[model.suffixes[node]] + 1
    lengths[SPECIAL_TOKENS.pad] = 0
    orders = [np.flatnonzero(lengths == order) for order in range(1, model.order + 1)]
    counts = [f"ngram {order}={len(nodes)}" for order, nodes in enumerate(orders, 1)]
    lines = ["\\data\\", *counts, ""]
    for order, nodes in enumerate(orders, 1):
        lines.append(f"\\{order}-grams:")
        for node in nodes.tolist():
            words = " ".join(entries[word] for word in model.words(node))
            backoff = f"\t{model.log_backoffs[node] / LN10:.7g}" if order < model.order else ""
            lines.append(f"{model.log_probs[node] / LN10:.7g}\t{words}{backoff}")
        lines.append("")
    write_text(path, "\n".join([*lines, "\\end\\", ""]))


def read_arpa(path: Path, entries: Sequence[str]) -> LanguageModel:
    r"""Read a model, plain or gzip; n-grams with words that are not in the vocabulary `entries` are left out.

    Fields are separated by any number of spaces and tabs, and lines before `\data\` are comments. A log-probability of
    minus infinity is -99, as SRILM writes it.
    """
    ids = {entry: number for number, entry in enumerate(entries)}
    nodes: dict[tuple[int, ...], int] = {(number,): number for number in range(len(entries))}
    suffixes, firsts = [-1] * len(entries), list(range(len(entries)))
    log_probs, log_backoffs = [np.nan] * len(entries), [0.0] * len(entries)
    stated: Counter[int] = Counter()
    for order, log_prob, words, log_backoff in _ngrams(path, stated):
        if not all(word in ids for word in words):
            continue
        key = tuple(ids[word] for word in words)
        if order > 1:
            if key[1:] not in nodes:
                raise RunError(
                    f"{path}: expected an n-gram '{' '.join(words[1:])}' as well as '{' '.join(words)}', found none; "
                    "create the file again without leaving out shorter n-grams"
                )
            nodes[key] = len(firsts)
            suffixes.append(nodes[key[1:]])
            firsts.append(key[0])
            log_probs.append(log_prob)
            log_backoffs.append(log_backoff)
        else:
            log_probs[key[0]], log_backoffs[key[0]] = log_prob, log_backoff
    log_probs[SPECIAL_TOKENS.pad] = IMPOSSIBLE
    unknown = log_probs[SPECIAL_TOKENS.unk]
    if np.isnan(unknown):
        raise RunError(
            f"{path}: expected '{SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.unk]}' among the unigrams of an ARPA file; name "
            "another file"
        )
    probs = np.array(log_probs)
    probs[np.isnan(probs)] = unknown
    return LanguageModel(max(stated), len(entries), np.array(suffixes), np.array(firsts), probs, np.array(log_backoffs))


def _ngrams(path: Path, stated: Counter[int]) -> Iterator[tuple[int, float, list[str], float]]:
    """Read the n-grams of a file: order, log-probability, words, log-backoff; natural logarithms.

    The number of n-grams of each order that the file states, which may be 0, is written to `stated`.
    """
    try:
        data = read_bytes(path)
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read as text ({system_reason(error)}); name an ARPA file") from None
    order, begun, ended = 0, False, False
    counts: Counter[int] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(BLANKS)
        if not begun:
            begun = line == "\\data\\"
        elif header := _HEADER.fullmatch(line):
            order += 1
            if int(header[1]) != order:
                raise RunError(f"{path}:{number}: expected the {order}-grams, found '{line}'; copy the file again")
        elif order == 0 and (count := _COUNT.fullmatch(line)):
            stated[int(count[1])] = int(count[2])
        elif line == "\\end\\":
            ended = True
            break
        elif line and order:
            counts[order] += 1
            yield order, *_ngram(line, order, f"{path}:{number}")
    if order == 0:
        raise RunError(
            f"{path}: expected an ARPA file, found no section of n-grams after '\\data\\'; name another file"
        )
    if not ended or counts != stated:
        raise RunError(
            f"{path}: expected {_counts(stated)} and then '\\end\\', found {_counts(counts)}; the file is not "
            "complete: copy or create it again"
        )


def _ngram(line: str, order: int, where: str) -> tuple[float, list[str], float]:
    """Read one line: log-probability, words, log-backoff."""
    fields = [field for field in _BETWEEN.split(line) if field]
    try:
        words, rest = fields[1 : order + 1], fields[order + 1 :]
        values = [-99.0 if (number := float(value)) == -np.inf else number for value in (fields[0], *rest)]
    except ValueError:
        values, words = [], []
    if len(words) != order or not 1 <= len(values) <= 2 or not np.isfinite(values).all() or values[0] > 0:
        raise RunError(f"{where}: expected a log-probability, {order} words and maybe a back-off; correct the line")
    return values[0] * LN10, words, values[1] * LN10 if len(values) == 2 else 0.0


def _counts(counts: Counter[int]) -> str:
    return ", ".join(f"{count} {order}-grams" for order, count in sorted(counts.items())) or "no n-grams"
