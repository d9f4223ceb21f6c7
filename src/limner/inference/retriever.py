"""Image-text retrieval in a collection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from limner.data.dataset import Examples
from limner.data.examples import Item
from limner.data.stored_items import StoredItems
from limner.errors import CollectionError, SettingsError, counted
from limner.features.encoders.base import AnyBackbone, Backbone
from limner.features.store import FeatureStore
from limner.generation.sentences import warn_of_unknown_words
from limner.inference.base import load_models, require_captioning
from limner.inference.features import BackboneFeatures, new_item, open_features
from limner.media.image import ImageInput
from limner.models.two_tower import TwoTower
from limner.progress import Progress
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.index.embeddings import embeddings_kind, require_retriever
from limner.retrieval.index.protocol import ALL, INDEXES, SPLIT, SearchOptions
from limner.retrieval.index.stored import IndexedCollection, IndexSource, build_index
from limner.retrieval.marginal import (
    MARGINAL_IMAGES,
    log_marginal,
    marginal_origin,
    marginal_path,
    sample_items,
    stored_log_marginal,
)
from limner.runs.trained_model import TrainedModel
from limner.text.queries import require_content, require_words

if TYPE_CHECKING:
    from limner.data.collection import Collection

logger = logging.getLogger(__name__)


class RetrievalResult(NamedTuple):
    """An image retrieved for a sentence, or a sentence retrieved for an image."""

    id: str
    """Id of the item that the image or sentence belongs to."""
    image: str | None
    """Path of the item's image or audio file; None for an item without a file."""
    text: str
    """Text-to-image: first sentence of the item in the model's language, or empty; image-to-text: the retrieved
    sentence."""
    score: float
    """Text-to-image: log P(w|I); image-to-text: log P(w|I) - alpha log P(w); for a two-tower model the cosine."""


class ImageSearch(NamedTuple):
    """Images retrieved for a sentence, and the extent of the search."""

    results: list[RetrievalResult]
    """Best images first."""
    kind: str | None
    """Kind of the index; None for a search of all images."""
    images: int
    """Number of images that were searched."""
    scored: int
    """Number of images whose score was computed."""
    exact: bool
    """Whether the results are proven to be the best of the searched images, by the index or because all were scored.
    Images without features are not searched; equal scores: `limner.retrieval.index.protocol.BestImages.exact`."""
    gap: float | None
    """Maximum difference in log-probability by which another image may exceed the last result; None if no bound is
    known."""

    @property
    def share(self) -> float:
        """Share of the images whose score was computed."""
        return self.scored / self.images

    def facts(self) -> dict[str, object]:
        """Return the kind of the index and the extent of the search, for JSON."""
        names = {"index": self.kind, "images": self.images, "scored": self.scored, "share": self.share}
        return {**names, "exact": self.exact, "gap": self.gap}


class BuiltIndex(NamedTuple):
    """Result of `Retriever.build_index`."""

    path: Path
    kind: str
    images: int
    """Number of images in the index."""
    is_new: bool
    """Whether the index was built now; false for an index that was up to date."""


def index_path(collection: Path, run: Path | None, split: str | None) -> Path | None:
    """Return the folder of the index of a model in a collection, by run directory and split; None without a run.

    Models of equal names share the folder; the record names the model of the index.
    """
    return run and collection / INDEXES / run.resolve().name / (ALL if split is None else f"{SPLIT}{split}")


class Retriever:
    """A captioning model that ranks the images or the sentences of a collection."""

    def __init__(self, model: TrainedModel, backbone: Backbone | None = None, run: Path | None = None) -> None:
        """Create a retriever of a model.

        Args:
            model: captioning model.
            backbone: computes the features of query images; None where the queries are sentences.
            run: run directory, where the marginals P(w) of sentences are kept; None to compute them for each query.

        Raises:
            RunError: the model is a translation model.
        """
        if model.recipe.model.generates:  # other models only rank
            require_captioning(model)
        self.model, self.backbone, self.run = model, backbone, run
        self._indexes: dict[tuple[str, str | None], IndexedCollection] = {}

    @classmethod
    def load(
        cls, run: Path | str, *, backbone: AnyBackbone = None, device: str = "cpu", encode_images: bool = True
    ) -> Self:
        """Load a trained model; see `Captioner.load` for arguments and errors."""
        (model,), encoder = load_models([run], backbone, device, encode_images)
        return cls(model, encoder, Path(run))

    def build_index(
        self,
        collection: Collection,
        *,
        split: str | None = None,
        path: Path | None = None,
        retriever: TrainedModel | None = None,
        rebuild: bool = False,
        on_progress: Progress | None = None,
    ) -> BuiltIndex:
        """Build an index of the images of a collection for `search_images`.

        Args:
            collection: images and their features.
            split: split to index; None for all.
            path: folder of the index; None for a folder of the run's name in `indexes` of the collection.
            retriever: two-tower model whose nearest images are the candidates; None for the kind of index that fits the
                model.
            rebuild: whether to replace an index of another model, or a damaged index.
            on_progress: called with the number of images done and their total.

        Raises:
            SettingsError: the model supports no index, or `retriever` is no two-tower model.
            FeatureError: the collection lacks the features that a model was trained on.
            SearchIndexError: there is a damaged index, or an index of another model, and `rebuild` is false.
        """
        place = path or index_path(collection.path, self.run, split)
        if place is None:
            raise SettingsError("the model was not loaded from a run: name the folder of the index")
        source = IndexSource(self.model, collection.path, split, self._open_features(collection, cache_mib=0))
        kind = None
        if retriever is None and isinstance(self.model.model, TwoTower):
            retriever = self.model
        if retriever is not None:
            require_retriever(retriever)
            kind = embeddings_kind(retriever, open_features(retriever, collection, cache_mib=0))
        items = collection.items(split)
        record, is_new = build_index(place, source, items, kind=kind, rebuild=rebuild, on_progress=on_progress)
        return BuiltIndex(place, record.kind, record.images, is_new)

    def search_images(
        self,
        sentence: str,
        collection: Collection,
        *,
        split: str | None = None,
        count: int = 5,
        index: Path | None = None,
        options: SearchOptions = SearchOptions(),  # noqa: B008  (immutable)
        on_progress: Progress | None = None,
    ) -> ImageSearch:
        """Rank the images of a collection for a sentence by P(w|I), with the index of the model if it exists.

        Images without features are left out.

        Args:
            sentence: query.
            collection: images to search and their features.
            split: split to search; None for all.
            count: number of results.
            index: folder of the index; None for the index of `build_index`, or a search of all images if there is no
                index.
            options: limits of the search.
            on_progress: called with the number of images done and their total, in a search of all images.

        Raises:
            FeatureError: the collection lacks the features that the model was trained on.
            CollectionError: there is no image to search, or the model uses no images.
            SearchIndexError: the index is damaged, or was made with another model or other features.
            SettingsError: the sentence has no word of the vocabulary.
        """
        place = None if options.exact else index or self.existing_index(collection, split)
        if place is None:
            features = self._open_features(collection)
            return self._search_all(sentence, collection, split, features, count, on_progress)
        tokens, key = self._tokens(sentence), (str(place.resolve()), split)
        opened = self._indexes.get(key)
        if opened is None or not opened.is_current(collection, place):
            source = IndexSource(self.model, collection.path, split, self._open_features(collection, cache_mib=0))
            opened = self._indexes[key] = IndexedCollection(collection, source, place)
        matches, items = opened.search(sentence, tokens, count, options)
        results = self._results(items, matches.scores.tolist(), collection)
        kind, images = opened.record.kind, opened.record.images
        return ImageSearch(results, kind, images, matches.scored, matches.exact, matches.gap)

    def retrieve_images(
        self,
        sentence: str,
        collection: Collection,
        *,
        split: str | None = None,
        count: int = 5,
        on_progress: Progress | None = None,
    ) -> list[RetrievalResult]:
        """Rank the images of a collection for a sentence; see `search_images` for arguments and errors."""
        return self.search_images(sentence, collection, split=split, count=count, on_progress=on_progress).results

    def _search_all(
        self,
        sentence: str,
        collection: Collection,
        split: str | None,
        features: FeatureStore,
        count: int,
        on_progress: Progress | None,
    ) -> ImageSearch:
        """Score all images, and rank them."""
        items = _with_features(collection, split, features, of_media=True)
        if not items:
            raise CollectionError(
                f"{collection.path}: no image with features to search; name another split, or run 'limner features'"
            )
        scores = pair_log_probs(self.model.model, [self._tokens(sentence)], items, features, on_progress=on_progress)[0]
        best = scores.argsort(descending=True, stable=True)[:count]
        results = self._results([items[row] for row in best.tolist()], scores[best].tolist(), collection)
        return ImageSearch(results, None, len(items), len(items), True, 0.0)

    def _tokens(self, sentence: str) -> list[int]:
        """Return the token ids of a query; SettingsError if it has no known word, or only function words."""
        require_words(self.model.tokenizer, [sentence])
        tokenizer = self.model.tokenizer
        require_content(tokenizer, sentence, tokenizer.unknown_words(sentence), self.model.recipe.data.lang)
        warn_of_unknown_words(tokenizer, [sentence], "all images are scored with <unk> in their place")
        return tokenizer.encode(sentence)

    def _results(self, items: Sequence[Item], scores: Sequence[float], collection: Collection) -> list[RetrievalResult]:
        lang = self.model.recipe.data.lang
        return [
            RetrievalResult(item.id, _media_path(item, collection), next(iter(item.texts(lang)), ""), score)
            for item, score in zip(items, scores, strict=True)
        ]

    def existing_index(self, collection: Collection, split: str | None = None) -> Path | None:
        """Return the folder of the index that `search_images` uses; None if there is none."""
        place = index_path(collection.path, self.run, split)
        return place if place is not None and place.exists() else None

    def require_features(self, collection: Collection) -> None:
        """Check that a collection has the features of the model; FeatureError or CollectionError if not."""
        self._open_features(collection, cache_mib=0)

    def retrieve_sentences(
        self,
        image: ImageInput,
        collection: Collection,
        *,
        split: str | None = None,
        count: int = 5,
        alpha: float = 1.0,
        on_progress: Progress | None = None,
    ) -> list[RetrievalResult]:
        """Rank the sentences of a collection for an image by log P(w|I) - alpha log P(w); each text occurs once.

        Alpha 1 is eq. 7 of Mao et al. (2015), other values give VisualGPTScore (Lin et al., 2024), and 0 ranks by the
        probability alone. The order of images for a sentence does not depend on alpha. P(w) is the mean over at most
        `MARGINAL_IMAGES` sampled training images, or images of the searched split where the collection has no training
        split; it is computed by the first query and kept in the run directory.

        Args:
            image: query; a path, encoded bytes, a PIL image or an array (H, W, 3).
            collection: sentences to search, and images with features for the marginal.
            split: split to search; None for all.
            count: number of results.
            alpha: weight of the marginal; without effect for a model that only ranks.
            on_progress: called while P(w) is computed, with the number of pairs done and their total.

        Raises:
            MediaError: the image cannot be read.
            FeatureError: the collection lacks the features that the model was trained on.
            CollectionError: there is no sentence to search, or the model uses no images.
            SettingsError: the retriever was created without a backbone.
        """
        features = self._open_features(collection)
        if self.backbone is None:
            raise SettingsError("retrieval by an image needs the backbone: load the retriever with encode_images=True")
        items = _with_features(collection, split, features)
        lang = self.model.recipe.data.lang
        examples = Examples(items, self.model.target, features)
        marginal_images = sample_items(collection, self.model.recipe.data.train, features, MARGINAL_IMAGES)
        marginal_images = marginal_images or sample_items(collection, split, features, MARGINAL_IMAGES)
        if not len(examples) or not marginal_images:
            raise CollectionError(
                f"{collection.path}: no sentence in '{lang}' to search, or no image with features for the marginal"
            )
        query = BackboneFeatures(self.backbone, [image])
        marginal_file = None if self.run is None else marginal_path(self.run, collection.path, split)
        targets = list(dict.fromkeys(map(tuple, examples.targets)))
        rows = {target: row for row, target in enumerate(targets)}
        unique = pair_log_probs(self.model.model, targets, [new_item(image)], query)[:, 0]
        if alpha and not isinstance(self.model.model, TwoTower):
            unique = unique - alpha * self._log_marginal(targets, marginal_images, features, marginal_file, on_progress)
        scores = unique[torch.tensor([rows[tuple(target)] for target in examples.targets])]
        best: dict[str, RetrievalResult] = {}
        for row in scores.argsort(descending=True, stable=True).tolist():
            if len(best) == count:
                break
            text, owner = examples.pair(row).target, items[examples.owners[row]]
            best.setdefault(text, RetrievalResult(owner.id, _media_path(owner, collection), text, float(scores[row])))
        return list(best.values())

    def _log_marginal(
        self,
        targets: Sequence[Sequence[int]],
        marginal_images: Sequence[Item],
        features: FeatureStore,
        stored: Path | None,
        on_progress: Progress | None,
    ) -> Tensor:
        """Compute log P(w) of each sentence, (S,), or read it from a file."""

        def compute() -> Tensor:
            return log_marginal(self.model.model, targets, marginal_images, features, on_progress=on_progress)

        if stored is None:
            return compute()
        origin = marginal_origin(self.model, targets, marginal_images, features)
        return stored_log_marginal(stored, origin, len(targets), compute)

    def _open_features(self, collection: Collection, cache_mib: int | None = None) -> FeatureStore:
        features = open_features(self.model, collection, cache_mib)
        if features is None:
            raise CollectionError(
                f"model '{self.model.recipe.model.name}' was trained without images; retrieval needs one that uses them"
            )
        return features


def _media_path(item: Item, collection: Collection) -> str | None:
    """Return the path of the image or audio file of an item; None if it has none."""
    return None if item.media_path is None else str(collection.media_file(item))


def _with_features(
    collection: Collection, split: str | None, features: FeatureStore, *, of_media: bool = False
) -> StoredItems:
    """Return the items of a split, or of all splits, with stored features; the number of other items is logged.

    Items without an image or audio file need no features, and are left out only with `of_media`.
    """
    without = 0

    def is_searched(item: Item) -> bool:
        nonlocal without
        without += not (covered := features.covers(item))
        return covered and (item.media_path is not None or not of_media)

    items = collection.items(split).select(is_searched)
    if without:
        logger.warning(
            "%s: %s left out of the search; run 'limner features'",
            collection.path,
            counted(without, "item without features is", "items without features are"),
        )
    return items
