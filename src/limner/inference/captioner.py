"""Trained models at work: pictures (or sounds, where the model's features are of sounds) and text in, results out.

Models that translate do so in `limner.inference.translator`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, Sentence, StoredFeatures
from limner.decoding.beam_search import DecodingSettings
from limner.decoding.scoring import pair_log_probs, score_examples
from limner.errors import CollectionError, MediaError, RunError, SettingsError
from limner.features.encoders.load import Backbone, load_backbone_for
from limner.features.sources import FeatureStore
from limner.inference.generate import describe_items, open_features, require_ensemble
from limner.media.audio import AUDIO_SUFFIXES
from limner.media.image import IMAGE_SUFFIXES, open_image
from limner.metrics import perplexity
from limner.models.protocols import WordEmbeddingModel
from limner.retrieval.all_pairs import MARGINAL_IMAGES, log_marginal
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.inference.translator import Translator

CAPTION_BATCH_SIZE = 32

logger = logging.getLogger(__name__)


class Caption(NamedTuple):
    """A sentence about a picture."""

    text: str
    log_prob: float
    """Natural logarithm of its probability given the picture."""
    score: float
    """What it was ranked by; see `DecodingSettings`."""


class SentenceScore(NamedTuple):
    """How probable a given sentence is."""

    log_prob: float
    """Natural logarithm, end sign included."""
    words: int
    """Words, end sign included."""
    perplexity: float
    """Mao et al. (2015), eq. 5."""


class RetrievalResult(NamedTuple):
    """A picture found for a sentence, or a sentence found for a picture."""

    id: str
    """Of the item it belongs to."""
    image: str | None
    """File of the picture or the sound, where one was looked for."""
    text: str
    score: float
    """log P(w|I), for sentences less log P(w)."""


class BackboneFeatures:
    """Pictures or sounds that are in no collection: looked at when needed, the way the model's features were made."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Look at each item's picture or listen to its sound; what several items share is looked at once.

        Raises:
            MediaError: names one that cannot be read.
        """
        paths = dict.fromkeys(item.medium for item in items if item.medium is not None)
        prepared = [self.backbone.read(Path(path)) for path in paths]
        values = self.backbone(np.stack(prepared)) if prepared else {}
        rows = {path: row for row, path in enumerate(paths)}
        return [
            None if item.medium is None else {kind: seen[rows[item.medium]] for kind, seen in values.items()}
            for item in items
        ]


class Captioner:
    """A model that describes and scores pictures, or an ensemble of several.

    A model whose features are of sounds takes sound files wherever pictures are named below.
    """

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None) -> None:
        """Join models of one vocabulary.

        Args:
            models: at least one; several describe together, scoring is the first one's.
            backbone: looks at new pictures; None for models that look at none.

        Raises:
            RunError: the models' vocabularies or features differ, or they translate.
        """
        require_ensemble(models)
        if models[0].source is not None:
            raise RunError(
                f"this model translates from '{models[0].source.lang}', it does not describe: "
                "use 'limner translate', in Python limner.Translator"
            )
        self.models, self.backbone = tuple(models), backbone

    @classmethod
    def load(cls, *runs: Path | str, backbone: str | None = None, device: str = "cpu", look: bool = True) -> Self:
        """Load trained models.

        Args:
            runs: run folders; several make an ensemble.
            backbone: where the network is that made the features, if it has moved since the training.
            device: 'cpu' or 'cuda'.
            look: false where no new picture will be looked at; the backbone is then not loaded.

        Raises:
            RunError: a folder holds no whole model.
            BackboneError: the backbone is not where it was.
        """
        models = [load_trained_model(run, device) for run in runs]
        return cls(models, load_backbone_of(models[0], backbone, device) if look else None)

    @property
    def suffixes(self) -> frozenset[str]:
        """How the names of the files end that the model describes: those of pictures, or those of sounds."""
        found: frozenset[str] = getattr(self.backbone, "suffixes", IMAGE_SUFFIXES)
        return found

    def describe(
        self,
        pictures: Sequence[Path | str],
        *,
        prefixes: Sequence[str] | None = None,
        **search: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Describe pictures.

        Args:
            pictures: files.
            prefixes: for each picture, words its description has to begin with.
            search: settings of `DecodingSettings` to change, such as beam_size=5, n_best=3.

        Returns:
            For each picture its `n_best` descriptions, the best first.

        Raises:
            MediaError: a file is not a picture that can be read.
            SettingsError: a search setting is misspelt or does not fit.
        """
        settings = changed_search(self.models[0].recipe.decoding, search)
        self._warn_of_unknown(prefixes or ())
        found = describe_items(
            self.models,
            self._items(pictures),
            self._source(),
            settings,
            prefixes=prefixes,
            batch_size=CAPTION_BATCH_SIZE,
        )
        tokenizer = self.models[0].tokenizer
        return [
            [Caption(tokenizer.decode(one.tokens, detokenise=True), one.log_prob, one.score) for one in hypotheses]
            for hypotheses in found
        ]

    def describe_each(
        self,
        pictures: Sequence[Path | str],
        **options: Any,  # noqa: ANN401
    ) -> Iterator[tuple[Path | str, list[Caption] | MediaError]]:
        """Describe pictures a few at a time, as they come; one that cannot be read does not keep the others waiting.

        Args:
            pictures: files.
            options: as of `describe`.

        Yields:
            Each picture, with its descriptions or with why it cannot be read.
        """
        prefixes = options.pop("prefixes", None)
        for start in range(0, len(pictures), CAPTION_BATCH_SIZE):
            some = pictures[start : start + CAPTION_BATCH_SIZE]
            given = None if prefixes is None else prefixes[start : start + CAPTION_BATCH_SIZE]
            try:
                yield from zip(some, self.describe(some, prefixes=given, **options), strict=True)
            except MediaError:
                for row, picture in enumerate(some):
                    words = None if given is None else [given[row]]
                    try:
                        yield picture, self.describe([picture], prefixes=words, **options)[0]
                    except MediaError as error:
                        yield picture, error

    def score(self, pictures: Sequence[Path | str], sentences: Sequence[str]) -> list[SentenceScore]:
        """Score sentences, each with the picture at its place.

        Raises:
            SettingsError: there are not as many pictures as sentences, or a sentence has no words.
            MediaError: a file is not a picture that can be read.
        """
        if len(pictures) != len(sentences):
            raise SettingsError(f"{len(pictures)} pictures and {len(sentences)} sentences: give one picture a sentence")
        first = self.models[0]
        _require_words(first, sentences)
        self._warn_of_unknown(sentences)
        lang = first.recipe.data.lang
        items = [
            replace(item, sentences=(Sentence(lang, text),))
            for item, text in zip(self._items(pictures), sentences, strict=True)
        ]
        examples = Examples(items, first.target, self._source())
        scored = score_examples(first.model, examples, batch_size=CAPTION_BATCH_SIZE)
        return [
            SentenceScore(log_prob, words, perplexity(log_prob, words).value)
            for log_prob, words in zip(scored.log_probs.tolist(), scored.words.tolist(), strict=True)
        ]

    def retrieve_images(
        self, sentence: str, collection: Collection, *, split: str | None = None, count: int = 5
    ) -> list[RetrievalResult]:
        """Pictures of a collection for a sentence, by P(w|I); those without features there are left out.

        Raises:
            FeatureError: the collection has no features of the kind the model looks at.
            CollectionError: there is no picture to search.
            SettingsError: the sentence has no words, or none that the model knows.
        """
        first = self.models[0]
        pictures = open_features(first, collection)
        if pictures is None:
            raise CollectionError("this model looks at no pictures, so it cannot search among them")
        items = [item for item in _known(collection, split, pictures) if item.medium is not None]
        if not items:
            raise CollectionError(
                f"{collection.path}: no picture with features to search; name another split, or run 'limner features'"
            )
        _require_words(first, [sentence])
        query = first.tokenizer.encode(sentence)
        if all(word == SPECIAL_TOKENS.unk for word in query):
            raise SettingsError(f"'{sentence}': the model knows none of these words; say it in words of its training")
        scores = pair_log_probs(first.model, [query], items, pictures)[0]
        best = scores.topk(min(count, len(items)))
        return [
            RetrievalResult(items[row].id, str(collection.media_file(items[row])), sentence, score)
            for score, row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def retrieve_sentences(
        self, picture: Path | str, collection: Collection, *, split: str | None = None, count: int = 5
    ) -> list[RetrievalResult]:
        """Sentences of a collection for a new picture, by eq. 7 of Mao et al. (2015), each text once.

        The marginal is taken over the collection's own pictures, up to a thousand of them.

        Raises:
            MediaError: the picture cannot be read.
            FeatureError: the collection has no features of the kind the model looks at.
            CollectionError: there is no sentence to find.
        """
        first = self.models[0]
        source, pictures = self._source(), open_features(first, collection)
        if source is None or pictures is None:
            raise CollectionError("this model looks at no pictures, so it cannot search with one")
        items = _known(collection, split, pictures)
        examples = Examples(items, first.target, pictures)
        others = [item for item in items if item.medium is not None][:MARGINAL_IMAGES]
        if not len(examples) or not others:
            raise CollectionError(
                f"{collection.path}: no sentence in '{examples.target.lang}' to find, or no picture to compare with"
            )
        scores = pair_log_probs(first.model, examples.targets, self._items([picture]), source)[:, 0]
        scores = scores - log_marginal(first.model, examples.targets, others, pictures)
        best: dict[str, RetrievalResult] = {}
        for row in scores.argsort(descending=True, stable=True).tolist():
            if len(best) == count:
                break
            text = examples.texts[row]
            best.setdefault(text, RetrievalResult(items[examples.owners[row]].id, None, text, float(scores[row])))
        return list(best.values())

    def _warn_of_unknown(self, sentences: Iterable[str]) -> None:
        """Say which words the model cannot tell from each other: it takes all of them for <unk>."""
        tokenizer = self.models[0].tokenizer
        words = {word for sentence in sentences for word in tokenizer.words(sentence)}
        unknown = sorted(word for word in words if SPECIAL_TOKENS.unk in tokenizer.encode(word))
        if unknown:
            shown = ", ".join(f"'{word}'" for word in unknown[:5]) + (", …" if len(unknown) > 5 else "")
            logger.warning("the model does not know %s and takes it for <unk>; probabilities mean little then", shown)

    def nearest_words(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Words whose vectors are nearest to a word's, with their Euclidean distances, the nearest first.

        Raises:
            SettingsError: the model has no word vectors, or never learned the word.
        """
        first = self.models[0]
        model = first.model
        if not isinstance(model, WordEmbeddingModel):
            raise SettingsError(f"a model '{first.recipe.model.name}' has no word vectors")
        entries = first.tokenizer.entries
        folded = first.tokenizer.words(word)  # lowercase, say, where the model's vocabulary is
        if len(folded) == 1:
            word = folded[0]
        if word not in entries:
            raise SettingsError(
                f"'{word}' is not among the {len(entries)} words of the model: its training sentences have it too "
                "seldom or not at all"
            )
        with torch.inference_mode():
            vectors = model.word_vectors()
            row = entries.index(word)
            distances = torch.linalg.vector_norm(vectors - vectors[row], dim=1)
            distances[[*SPECIAL_TOKENS, row]] = torch.inf
        nearest = distances.topk(min(count, len(entries) - len(SPECIAL_TOKENS) - 1), largest=False)
        return [(entries[k], d) for d, k in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)]

    def _items(self, pictures: Sequence[Path | str]) -> list[Item]:
        """What is to be described; the name tells a sound, and the backbone refuses what it cannot read.

        A model that looks at nothing has no backbone, but a file that is not there is a slip with it, too.
        """
        if not self.models[0].config.features:
            for path in dict.fromkeys(pictures):
                open_image(Path(path), at_least=1)
        return [new_item(str(path), path) for path in pictures]

    def _source(self) -> BackboneFeatures | None:
        return BackboneFeatures(self.backbone) if self.backbone is not None else None


def new_item(id_: str, path: Path | str | None) -> Item:
    """An item of no collection; the name of its file tells a sound from a picture."""
    if path is not None and Path(path).suffix.lower() in AUDIO_SUFFIXES:
        return Item(id_, "new", audio=str(path))
    return Item(id_, "new", image=None if path is None else str(path))


def changed_search(usual: DecodingSettings, changes: Mapping[str, Any]) -> DecodingSettings:
    """How to search: as usual but for the changes; the beam is wide enough for the sentences that are wanted.

    Raises:
        SettingsError: a change is misspelt or does not fit.
    """
    if not changes:
        return usual
    changes = dict(changes)
    if "n_best" in changes and "beam_size" not in changes:
        changes["beam_size"] = max(usual.beam_size, changes["n_best"])
    return DecodingSettings.parse({**usual.model_dump(), **changes}, where="decoding")


def load_backbone_of(model: TrainedModel, backbone: str | None, device: str) -> Backbone | None:
    """What looks at new pictures for a model; None for one that was trained without any.

    Raises:
        BackboneError: the backbone is not where it was.
    """
    return load_backbone_for(model.config.features, backbone, device=device) if model.config.features else None


def _require_words(model: TrainedModel, sentences: Sequence[str]) -> None:
    """Refuse sentences of no words, whose probability would be that of saying nothing."""
    for sentence in sentences:
        if not model.tokenizer.words(sentence):
            raise SettingsError(f"'{sentence}': a sentence without words; say at least one")


def _known(collection: Collection, split: str | None, pictures: FeatureStore) -> list[Item]:
    """The items that can be searched: without those whose picture has no features, which are counted in the log."""
    items = collection.items(split)
    known = [item for item in items if pictures.covers(item)]
    if len(known) < len(items):
        logger.warning(
            "%s: search goes without %d %s that have no features; 'limner features' adds them, or says why not",
            collection.path,
            len(items) - len(known),
            pictures.tables[0].spec.media,
        )
    return known


def load(
    *runs: Path | str, backbone: str | None = None, device: str = "cpu", look: bool = True
) -> Captioner | Translator:
    """Load a trained model, or several as an ensemble: a `Translator` where they translate, else a `Captioner`.

    Arguments and errors are those of `Captioner.load`.
    """
    from limner.inference.translator import Translator  # which shares what stands above

    models = [load_trained_model(run, device) for run in runs]
    eye = load_backbone_of(models[0], backbone, device) if look else None
    return Captioner(models, eye) if models[0].source is None else Translator(models, eye)
