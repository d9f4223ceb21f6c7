"""What a sentence was made from: which source words, which places of the picture, and how much of the picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.batching import bounded_batches
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Example, StoredFeatures, collate
from limner.decoding.beam_search import Hypothesis
from limner.errors import SettingsError
from limner.features.store import FeatureSpec
from limner.metrics.base import Score
from limner.models.protocols import device_of
from limner.runs.records import GateShare, GateStatistics
from limner.runs.trained_model import TrainedModel
from limner.text import compounds
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS, WORD_START

EXPLANATION_BATCH_SIZE = 32
END = SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.eos]
PICTURE = "«picture»"
THRESHOLDS = (0.5, 0.8)
"""Of the gate, those of Calixto et al. (2017), section 5.2."""

Weights = NDArray[np.float64]


class Explanation(NamedTuple):
    """How a sentence was made, word by word; pieces of words are put together again."""

    source: tuple[str, ...]
    """S: the picture or its regions, where these stand at the head of the sentence, then the words; nothing where a
    picture was described."""
    target: tuple[str, ...]
    """T: the words, then the end sign."""
    alignment: Weights | None
    """(T, S): weights over the source; of the pieces of a source word the sum, of a target word the mean. None where
    the model has no attention over the source."""
    attention: Weights | None
    """(T, L): weights over the places of the picture; None where there is none, or the model does not attend to it."""
    gate: Weights | None
    """(T): how far the picture was let in, 0 to 1; None likewise."""


class Word(NamedTuple):
    """A word, and where its pieces stand."""

    text: str
    places: list[int]


@torch.inference_mode()
def explain(
    model: TrainedModel,
    queries: Sequence[GenerationInput],
    hypotheses: Sequence[Hypothesis],
    pictures: FeatureSource | None,
    *,
    batch_size: int = EXPLANATION_BATCH_SIZE,
    progress: Callable[[int, int], None] | None = None,
) -> list[Explanation]:
    """Read translations, or descriptions, once more, and tell what each of their words was made from.

    Args:
        model: of an ensemble, one of its models; in evaluation mode.
        queries: what was translated, or which picture was described.
        hypotheses: for each what was made of it, by this model or another of its vocabulary.
        pictures: where those of the queries are seen.
        batch_size: sentences read together, fewer where they are very long; it changes no result.
        progress: told the sentences that are done, and how many there are.
    """
    device = device_of(model.model)
    explained: list[Explanation] = []
    read = [_read(model, query) for query in queries]
    lengths = [max(len(tokens or ()), len(said.tokens)) for tokens, said in zip(read, hypotheses, strict=True)]
    for rows in bounded_batches(range(len(queries)), lengths, batch_size):
        some = [queries[row] for row in rows]
        seen = pictures.take([query.item for query in some]) if pictures else [None] * len(some)
        examples = [
            Example(queries[row].item.id, hypotheses[row].tokens, read[row], image)
            for row, image in zip(rows, seen, strict=True)
        ]
        batch = collate(examples).to(device)
        output = model.model(batch)
        padded = 0 if batch.source is None else batch.source.shape[1]
        for row, (query, example) in enumerate(zip(some, examples, strict=True)):
            source, alignment = _source(model, query, example, _row(output.alignment, row), padded)
            said = [*words_of(model.tokenizer, example.target), Word(END, [len(example.target)])]
            attention, gate = (
                None if example.image is None else _row(part, row) for part in (output.attention, output.gate)
            )
            target = tuple(word.text for word in said)
            explained.append(
                Explanation(source, target, _mean(alignment, said), _mean(attention, said), _mean(gate, said))
            )
        if progress is not None:
            progress(len(explained), len(queries))
    return explained


def _read(model: TrainedModel, query: GenerationInput) -> list[int] | None:
    return None if model.source_tokenizer is None else model.source_tokenizer.encode(query.source or "")


def _row(values: Tensor | None, row: int) -> Weights | None:
    return None if values is None else values[row].double().cpu().numpy()


def _mean(weights: Weights | None, words: Sequence[Word]) -> Weights | None:
    """Of each word the mean over its pieces, the first axis of `weights`."""
    return None if weights is None else np.stack([weights[word.places].mean(0) for word in words])


def _source(
    model: TrainedModel, query: GenerationInput, example: Example, alignment: Weights | None, padded: int
) -> tuple[tuple[str, ...], Weights | None]:
    """The source words and the weights over them, (T, S), of the pieces' weights; `padded` is their length."""
    if model.source_tokenizer is None:
        return (), None
    words = words_of(model.source_tokenizer, example.source or ())
    whole = model.source_tokenizer.words(query.source or "")  # in which nothing is <unk>
    if len(whole) == len(words):
        words = [Word(text, places) for text, (_, places) in zip(whole, words, strict=True)]
    if alignment is None:
        return tuple(word.text for word in words), None
    heads = alignment.shape[1] - padded
    read = [
        *_heads(model.config.features, example.image, heads),
        *(Word(text, [heads + place for place in places]) for text, places in words),
    ]
    summed = [alignment[:, places].sum(1) for _, places in read]
    return tuple(word.text for word in read), np.stack(summed, 1)


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """The words that ids are pieces of, as `Tokenizer.decode` puts them together."""
    parts: list[Word] = []
    for place, id_ in enumerate(ids):
        entry = tokenizer.entries[id_]
        if tokenizer.settings.level == "bpe" and parts and not entry.startswith(WORD_START):
            parts[-1] = Word(parts[-1].text + entry, [*parts[-1].places, place])
        else:
            parts.append(Word(entry, [place]))
    if tokenizer.settings.level == "bpe":
        parts = [Word(text.removeprefix(WORD_START), places) for text, places in parts]
    if tokenizer.splitter is None:
        return parts
    groups: list[list[Word]] = []
    for part in parts:
        joined = part.text.startswith(compounds.JOINER), groups and groups[-1][-1].text.startswith(compounds.JOINER)
        if groups and any(joined):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [
        Word("".join(compounds.join([part.text for part in group])), [place for part in group for place in part.places])
        for group in groups
    ]


def _heads(specs: Sequence[FeatureSpec], image: StoredFeatures | None, count: int) -> list[Word]:
    """What of a picture stands at the head of the source, of `count` places in the batch that some are padding of."""
    if image is None or not count:
        return []
    if image.get("pooled") is not None:
        return [Word(PICTURE, [0])]
    grid, spec = image["grid"], next(spec for spec in specs if spec.kind == "grid")
    assert grid is not None
    if spec.regions is not None:
        names = [*(f"«region {place + 1}»" for place in range(count - 1)), PICTURE]
    else:
        names = [f"«place {place + 1}»" for place in range(count)]
    return [Word(name, [place]) for place, name in enumerate(names) if grid[place].any()]


def gate_statistics(explanations: Iterable[Explanation], thresholds: Sequence[float] = THRESHOLDS) -> GateStatistics:
    """Count how often the gate is open, and for which words; the end sign is no word.

    Raises:
        SettingsError: there is no gate: the model has none, or no sentence had a picture.
    """
    gates: dict[str, list[float]] = defaultdict(list)
    for one in explanations:
        if one.gate is not None:
            for word, gate in zip(one.target[:-1], one.gate[:-1].tolist(), strict=True):
                gates[word].append(gate)
    if not gates:
        raise SettingsError(
            "gate statistics: no word has an image gate; take a model with 'conditional' decoder and picture "
            "'attention', and sentences with pictures"
        )
    said = Counter({word: len(own) for word, own in gates.items()})
    by_part = {"all words": list(gates), **_by_frequency(said), **_by_kind(gates)}
    parts = [
        _share(part, np.array([gate for word in words for gate in gates[word]]), thresholds)
        for part, words in by_part.items()
        if words
    ]
    ranked = sorted(((word, float(np.mean(own)), len(own)) for word, own in gates.items()), key=lambda w: (-w[1], w[0]))
    return GateStatistics(thresholds=tuple(thresholds), parts=tuple(parts), words=tuple(ranked))


def measure_gates(
    model: TrainedModel,
    queries: Sequence[GenerationInput],
    hypotheses: Sequence[Hypothesis],
    pictures: FeatureSource | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> GateStatistics | None:
    """`gate_statistics` of many sentences, of which a few are held in memory; arguments as of `explain`.

    Returns:
        None where the model has no gate, which the first sentences with a picture tell, or nothing has a picture.
    """
    seen = [row for row, query in enumerate(queries) if query.item.medium is not None]

    def read() -> Iterator[Explanation]:
        for begin in range(0, len(seen), EXPLANATION_BATCH_SIZE):
            rows = seen[begin : begin + EXPLANATION_BATCH_SIZE]
            found = explain(model, [queries[row] for row in rows], [hypotheses[row] for row in rows], pictures)
            if all(one.gate is None for one in found):
                return
            yield from found
            if progress is not None:
                progress(begin + len(rows), len(seen))

    try:
        return gate_statistics(read())
    except SettingsError:
        return None


def gate_scores(gates: GateStatistics) -> list[Score]:
    """The figures of all words as scores, shares in percent."""
    words = gates.parts[0]
    counted = f"words:{words.words}"
    shares = zip(gates.thresholds, words.above, strict=True)
    return [
        Score("gate_mean", words.mean, counted),
        *(Score(f"gate_above_{threshold:g}", 100 * share, f"{counted}|scale:0-100") for threshold, share in shares),
    ]


def _share(part: str, gates: Weights, thresholds: Sequence[float]) -> GateShare:
    above = tuple(float((gates > threshold).mean()) for threshold in thresholds)
    return GateShare(part=part, words=len(gates), mean=float(gates.mean()), above=above)


def _by_frequency(said: Counter[str]) -> dict[str, list[str]]:
    """Thirds of what was said, by how often the word is; words that are equally frequent stay together."""
    names = ("frequent words", "middling words", "rare words")
    parts: dict[str, list[str]] = {name: [] for name in names}
    before, total = 0, said.total()
    for count in sorted(set(said.values()), reverse=True):
        words = [word for word in said if said[word] == count]
        parts[names[3 * before // total]] += words
        before += count * len(words)
    return parts


def _by_kind(words: Iterable[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {"letters": [], "numbers": [], "other signs": []}
    for word in words:
        kind = "letters" if any(map(str.isalpha, word)) else "numbers" if any(map(str.isdigit, word)) else "other signs"
        parts[kind].append(word)
    return parts
