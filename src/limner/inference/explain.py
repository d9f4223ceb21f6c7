"""Attention of a model for each word of a sentence: over the source words, over the image, and the image gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.batching import batches_by_length
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Example, StoredFeatures, collate
from limner.decoding.sentence import Derivation, Sentence, Span
from limner.decoding.settings import change_decoding
from limner.errors import SettingsError
from limner.features.spec import FeatureSpec
from limner.inference.search_translations import search_translations
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import Output, device_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.text import compounds
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS

EXPLANATION_BATCH_SIZE = 32
EXPLAINED_CANDIDATES = 100
"""Number of best translations of a `PhraseBased` that are compared with the translation to explain."""
END_OF_SENTENCE = SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.eos]
IMAGE_TOKEN = "«image»"
"""Name of the visual prefix token that represents the whole image."""

Weights = NDArray[np.float64]


class Explanation(NamedTuple):
    """Attention weights of a sentence by words; subword units are merged into words.

    S is the number of source words, T the number of target words, L the number of image locations.
    """

    source: tuple[str, ...]
    """S visual prefix tokens and source words, in this order; empty for a caption."""
    target: tuple[str, ...]
    """T target words, the last of which is the end-of-sentence token, unless the model is a `PhraseBased`."""
    alignment: Weights | None
    """Weights over the source, (T, S): summed over the subwords of a source word, averaged over the subwords of a
    target word. None for models without attention over a source."""
    attention: Weights | None
    """Weights over the image locations, (T, L). None without an image, or for models without attention over it."""
    gate: Weights | None
    """Gate of the image context, (T,), from 0 to 1. None without an image, or for models without a gate."""
    selected: Weights | None = None
    """Locations that hard attention selects, (T, L): 1 for the location of a word, averaged over the subwords of the
    word. None for models without hard attention."""

    phrases: tuple[tuple[Span, Span], ...] = ()
    """Phrases of a phrase-based translation, in the order of the target: source and target words."""

    @property
    def words(self) -> tuple[str, ...]:
        """Target words without the end-of-sentence token."""
        return self.target[:-1] if self.target[-1:] == (END_OF_SENTENCE,) else self.target

    @property
    def has_weights(self) -> bool:
        """Whether there is an alignment, an attention or a gate."""
        return any(weights is not None for weights in (self.alignment, self.attention, self.gate))

    @property
    def image_weights(self) -> Weights | None:
        """Weights of the locations in the image context, (T, L): `selected` for hard attention, else `attention`."""
        return self.attention if self.selected is None else self.selected


class Word(NamedTuple):
    """A word and the positions of its tokens."""

    text: str
    positions: list[int]


def hypothesis_batches(
    model: TrainedModel,
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    features: FeatureSource | None,
    batch_size: int,
) -> Iterator[tuple[list[int], list[Example]]]:
    """Yield the rows of inputs of similar length, with examples whose targets are the sentences generated for them."""
    tokenizer = model.source_tokenizer
    sources = [None if tokenizer is None else tokenizer.encode(entry.source or "") for entry in inputs]
    lengths = [max(len(ids or ()), len(best.tokens)) for ids, best in zip(sources, hypotheses, strict=True)]
    for rows in batches_by_length(lengths, batch_size):
        items = [inputs[row].item for row in rows]
        images = features.take(items) if features is not None else [None] * len(items)
        examples = [
            Example(item.id, hypotheses[row].tokens, sources[row], image)
            for row, item, image in zip(rows, items, images, strict=True)
        ]
        yield rows, examples


@torch.inference_mode()
def explain(
    model: TrainedModel,
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    features: FeatureSource | None,
    *,
    batch_size: int = EXPLANATION_BATCH_SIZE,
    on_progress: Progress | None = None,
) -> list[Explanation]:
    """Compute the attention of a model for given captions or translations by one pass of `forward`.

    Args:
        model: trained model in evaluation mode.
        inputs: N images that were described, or source sentences that were translated.
        hypotheses: N generated sentences, by this model or another of the same vocabulary.
        features: features of the images; None for a model that uses none.
        batch_size: sentences a batch, fewer where they are very long; it changes no result.
        on_progress: called with the number of sentences done and their total.
    """
    if isinstance(model.model, PhraseBased):
        return explain_search(model, inputs, hypotheses, on_progress)
    explanations: dict[int, Explanation] = {}
    for rows, examples in hypothesis_batches(model, inputs, hypotheses, features, batch_size):
        batch = collate(examples).to(device_of(model.model))
        output = model.model(batch)
        source_length = 0 if batch.source is None else batch.source.shape[1]
        for k, (row, example) in enumerate(zip(rows, examples, strict=True)):
            explanations[row] = _explanation(model, inputs[row], example, _row(output, k), source_length)
        if on_progress is not None:
            on_progress(len(explanations), len(inputs))
    return [explanations[row] for row in range(len(inputs))]


def explain_search(
    model: TrainedModel,
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    on_progress: Progress | None = None,
) -> list[Explanation]:
    """Return the word alignment and the phrases of translations by a `PhraseBased`.

    Raises:
        SettingsError: the model does not generate a translation that has no derivation.
    """
    explanations = []
    for done, (source, hypothesis) in enumerate(zip(inputs, hypotheses, strict=True), 1):
        derivation = hypothesis.derivation or _search_derivation(model, source, hypothesis.tokens)
        explanations.append(_explain_derivation(model, source, hypothesis.tokens, derivation))
        if on_progress is not None:
            on_progress(done, len(inputs))
    return explanations


def _search_derivation(model: TrainedModel, source: GenerationInput, tokens: tuple[int, ...]) -> Derivation:
    """Find the derivation of a stored translation by the search of the recipe."""
    settings = model.recipe.decoding
    settings = change_decoding(settings, {"n_best": min(settings.beam_size, EXPLAINED_CANDIDATES)})
    (n_best,) = search_translations([model], [source], settings)
    for translation in n_best:
        if translation.tokens == tokens and translation.derivation is not None:
            return translation.derivation
    raise SettingsError(
        f"explanation of '{source.source}': the translation is not among the {len(n_best)} best of model "
        f"'{model.recipe.model.name}'; explain translations of the same model with the same settings"
    )


def _explain_derivation(
    model: TrainedModel, source: GenerationInput, tokens: tuple[int, ...], derivation: Derivation
) -> Explanation:
    """Merge the aligned tokens and the phrases of a translation into words."""
    assert model.source_tokenizer is not None
    ids = model.source_tokenizer.encode(source.source or "")
    alignment = np.zeros((len(tokens), len(ids)))
    for position, target in derivation.alignment:
        alignment[target, position] = 1
    alignment /= np.maximum(alignment.sum(1, keepdims=True), 1)
    words = words_of(model.tokenizer, tokens)  # no phrase has the end of the sentence
    names, merged = _merge_source(model, source, Example(source.item.id, tokens, ids), alignment, len(ids))
    source_words = words_of(model.source_tokenizer, ids)
    copied = {target: position for position, target in derivation.alignment if tokens[target] == SPECIAL_TOKENS.unk}
    spelling = {position: name for name, word in zip(names, source_words, strict=True) for position in word.positions}
    return Explanation(
        names,
        tuple(spelling[copied[word.positions[0]]] if word.positions[0] in copied else word.text for word in words),
        _average(merged, words),
        attention=None,
        gate=None,
        phrases=tuple((_span(source_words, f), _span(words, e)) for f, e in derivation.phrases),
    )


@torch.inference_mode()
def count_locations(model: TrainedModel) -> int | None:
    """Count the locations or frames that a captioner attends to, by features of zeros; None without attention."""
    image: StoredFeatures = {spec.kind: np.zeros(spec.shape, dtype=np.float16) for spec in model.config.features}
    output = model.model(collate([Example("", (), None, image)]).to(device_of(model.model)))
    return None if output.attention is None else output.attention.shape[-1]


class _TokenWeights(NamedTuple):
    """Weights of one sentence by tokens."""

    alignment: Weights | None  # (T, S)
    attention: Weights | None  # (T, L)
    gate: Weights | None  # (T,)
    selected: Weights | None  # (T, L)


def _row(output: Output, row: int) -> _TokenWeights:
    values = output.alignment, output.attention, output.gate, output.selected
    return _TokenWeights(*(None if value is None else value[row].double().cpu().numpy() for value in values))


def _explanation(
    model: TrainedModel, source: GenerationInput, example: Example, weights: _TokenWeights, source_length: int
) -> Explanation:
    """Merge the weights of tokens into weights of words; `source_length` is the length of the padded source."""
    names, alignment = _merge_source(model, source, example, weights.alignment, source_length)
    target = [*words_of(model.tokenizer, example.target), Word(END_OF_SENTENCE, [len(example.target)])]
    over_image = (None, None, None) if example.image is None else weights[1:]
    alignment, attention, gate, selected = (_average(values, target) for values in (alignment, *over_image))
    return Explanation(names, tuple(word.text for word in target), alignment, attention, gate, selected)


def _average(weights: Weights | None, words: Sequence[Word]) -> Weights | None:
    """Average the rows of `weights` over the tokens of each word."""
    return None if weights is None else np.stack([weights[word.positions].mean(0) for word in words])


def _merge_source(
    model: TrainedModel, source: GenerationInput, example: Example, alignment: Weights | None, source_length: int
) -> tuple[tuple[str, ...], Weights | None]:
    """Return the source words, and the alignment (T, S) summed over the tokens of each word."""
    if model.source_tokenizer is None:
        return (), None
    words = words_of(model.source_tokenizer, example.source or ())
    spelled = model.source_tokenizer.words(source.source or "")  # the spelling of words that are encoded as <unk>
    if len(spelled) == len(words):
        words = [Word(text, positions) for text, (_, positions) in zip(spelled, words, strict=True)]
    if alignment is None:
        return tuple(word.text for word in words), None
    prefix_length = alignment.shape[1] - source_length
    columns = [
        *_visual_prefix(model.config.features, example.image, prefix_length),
        *(Word(text, [prefix_length + position for position in positions]) for text, positions in words),
    ]
    summed = [alignment[:, positions].sum(1) for _, positions in columns]
    return tuple(word.text for word in columns), np.stack(summed, 1)


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """Group token ids into words, as `Tokenizer.decode` merges subwords and parts of compounds."""
    words: list[Word] = []
    for position, id_ in enumerate(ids):
        text = tokenizer.spellings[id_]
        if words and not tokenizer.starts_word(id_):
            words[-1] = Word(words[-1].text + text, [*words[-1].positions, position])
        else:
            words.append(Word(text, [position]))
    return words if tokenizer.splitter is None else _join_compounds(words)


def _span(words: Sequence[Word], tokens: Span) -> Span:
    """Return the span of words that contain a token of a span."""
    numbers = [number for number, word in enumerate(words) if {*word.positions} & {*range(*tokens)}]
    return numbers[0], numbers[-1] + 1


def _join_compounds(words: Sequence[Word]) -> list[Word]:
    """Merge the parts of compounds, which tokens that start with `compounds.JOINER` connect."""
    groups: list[list[Word]] = []
    for word in words:
        joined = word.text.startswith(compounds.JOINER)
        if groups and (joined or groups[-1][-1].text.startswith(compounds.JOINER)):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [
        Word(
            "".join(compounds.join([word.text for word in group])),
            [position for word in group for position in word.positions],
        )
        for group in groups
    ]


def _visual_prefix(specs: Sequence[FeatureSpec], image: StoredFeatures | None, length: int) -> list[Word]:
    """Name the visual prefix tokens of an image, the first `length` positions of the source; padding is left out."""
    if image is None or not length:
        return []
    if image.get("pooled") is not None:
        return [Word(IMAGE_TOKEN, [0])]
    grid, spec = image["grid"], next(spec for spec in specs if spec.kind == "grid")
    assert grid is not None
    if spec.regions is not None:
        names = [*(f"«region {position + 1}»" for position in range(length - 1)), IMAGE_TOKEN]
    else:
        names = [f"«location {position + 1}»" for position in range(length)]
    return [Word(name, [position]) for position, name in enumerate(names) if grid[position].any()]
