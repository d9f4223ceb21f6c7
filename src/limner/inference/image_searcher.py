"""Search of images by sentences: concepts that a sentence names, and a joint space of sentences and images.

Needs no torch. Shapes: N images, D feature size, V words, E word embedding, J joint space.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from limner.errors import RunError, SettingsError, shortened, system_reason
from limner.media.image import ImageInput, Pixels
from limner.runs.concepts import TAG_PROBABILITY, Concepts, Vector, pooled_vector
from limner.runs.pretrained import DEFAULT_LANG, pretrained_languages, pretrained_run
from limner.runtime import generators
from limner.text.queries import language_name, quoted, require_content, similar_word
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.data.examples import StoredFeatures
    from limner.hub.families.joint_space import HubSpace

logger = logging.getLogger(__name__)

Searcher: TypeAlias = "ImageSearcher | HubSpace"
"""The built-in searcher, or a joint space of the hub, with the same methods."""
JOINT = "joint"
"""Run directory of the two-tower model, in the run directory of the built-in captioner."""
TENSORS = ("embedding.weight", "sentence.weight", "sentence.bias", "image.weight", "image.bias", "log_sharpness")
CONCEPT_WEIGHT = 0.5
"""Weight of the concepts, beside gamma s(w, I); chosen on Flickr8k's validation split and the validation photographs.
"""
MAX_CONCEPTS_ALONE = 2
"""Number of concepts up to which the concepts of a sentence alone rank images, unless all are common."""
COMMON_RATE = 0.2
"""Rate of a concept, such as a person, that is in too many photographs to rank them alone."""
THINGS_WEIGHT = 2.0
"""Weight of the things in images beside the joint space in the similarity of images; chosen on Pascal's photographs."""
TIE_WEIGHT = 1e-3
"""Weight of the cosine where the cosine only orders images of equal probability."""
PROJECTION_BATCH_SIZE = 4096
"""Number of images that are projected to the joint space together."""


class JointSpace:
    """The built-in `two_tower` model in NumPy; see `limner.models.two_tower` for its equations.

    The sentence encoder is the mean of the word embeddings (`pooling: words`), and images are scaled to length
    sqrt(D) (`scaling: l2`).
    """

    def __init__(self, tokenizer: Tokenizer, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Create the model of a vocabulary and the tensors of its state."""
        self.tokenizer = tokenizer
        self._tensors = {name: tensors[name].astype(np.float32) for name in TENSORS}
        self.sharpness = float(np.exp(self._tensors["log_sharpness"]))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a run directory; RunError if it is damaged."""
        try:
            return cls(Tokenizer.load(folder / "tokenizer.json"), load_file(folder / "model.safetensors"))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{folder}: missing or damaged ({system_reason(error)}); install Limner again") from None

    def sentence_vector(self, sentence: str) -> Vector:
        """Compute u(w) of the words of a sentence that are in the vocabulary, (J,), of unit length."""
        known = (token for token in self.tokenizer.encode(sentence) if token != SPECIAL_TOKENS.unk)
        tokens = [SPECIAL_TOKENS.bos, *known]
        return self._project("sentence", self._tensors["embedding.weight"][tokens].mean(0))

    def image_vectors(self, pooled: NDArray[np.floating[Any]]) -> Vector:
        """Compute v(I) of images with pooled features (N, D); returns (N, J), of unit length."""
        parts = [
            self._project("image", np.sqrt(pooled.shape[1]) * unit(pooled[begin : begin + PROJECTION_BATCH_SIZE]))
            for begin in range(0, len(pooled), PROJECTION_BATCH_SIZE)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self._tensors["image.bias"])), np.float32)

    def _project(self, tower: str, values: Vector) -> Vector:
        return unit(values @ self._tensors[f"{tower}.weight"].T + self._tensors[f"{tower}.bias"])


def open_searcher(lang: str, space: str) -> Searcher:
    """Return the built-in searcher of a language, or load the joint space of a folder; errors as `HubModel`."""
    if not space:
        return ImageSearcher(lang)
    from limner.hub.families.joint_space import HubSpace

    return HubSpace(Path(space))


class ImageSearcher:
    """Features of images that a search needs, and the scores of sentences: the built-in backbone, concepts and space.

    Attributes: digest: SHA-256 of the weights of the backbone, which identify the features. vector_dim: size D of the
        features. space: folder of the joint space; empty for the built-in space. concepts: the concepts of
        the captioner.
    """

    space = ""

    def __init__(self, lang: str | None = None) -> None:
        """Select the built-in models of a language, or of English if it has none; they are loaded when needed."""
        self._run = pretrained_run(lang if lang in pretrained_languages() else DEFAULT_LANG)
        concepts = Concepts.load(self._run)
        assert concepts is not None, "a built-in captioner has concepts"
        self.concepts = concepts
        self.digest, self.vector_dim = concepts.file.backbone_sha256, concepts.weight.shape[1]

    @cached_property
    def joint(self) -> JointSpace:
        """The joint space; RunError if a file of the package is missing."""
        return JointSpace.load(self._run / JOINT)

    @cached_property
    def vision(self) -> generators.ExportedCaptioner:
        """The built-in captioner, whose backbone computes the features."""
        return generators.load_captioner(self._run)

    @property
    def side(self) -> int:
        """Minimum side in pixels of images resized for the backbone."""
        preprocessing = self.vision.manifest.preprocessing
        return 0 if preprocessing is None else preprocessing.short

    def read(self, image: ImageInput) -> Pixels:
        """Open an image, and resize it for the backbone; MediaError if it cannot be read."""
        return self.vision.read(image)

    def features_of(self, images: Sequence[Pixels]) -> list[StoredFeatures]:
        """Compute the features of images by kind; RunError if a feature is not finite."""
        return [dict(features) for features in self.vision.features_of(images)]

    def vector_of(self, features: StoredFeatures) -> Vector:
        """Return the pooled features of an image, (D,)."""
        return pooled_vector(features)

    def project(self, vectors: NDArray[np.floating[Any]]) -> Vector:
        """Compute the vectors of images in the joint space, (N, J), of their pooled features (N, D)."""
        return self.joint.image_vectors(vectors)

    def scores(self, sentence: str, vectors: NDArray[np.floating[Any]], projected: Vector) -> Vector:
        """Compute how well a sentence w describes images I, (N,).

        With the n concepts c that w names, lambda = `CONCEPT_WEIGHT` and the cosine s of the joint space,

            score(w, I) = lambda sum_c log p(c | I) + a(w) gamma s(w, I)

        where a(w) is 1 if every concept of w is common (a skier is a person) or w names none, else
        max(0.001, 1 - 2 / n). One or two concepts, which were trained on more photographs of these things, rank the
        images alone, and the cosine orders ties; for more concepts the cosine counts as well. A query none of whose
        concepts has the probability `TAG_PROBABILITY` in any image is logged.

        Args:
            sentence: the query w.
            vectors: pooled features, (N, D).
            projected: vectors of the joint space, (N, J).

        Raises:
            SettingsError: no word of the sentence is known, or function words only.
        """
        if not sentence.strip():
            raise SettingsError("the query has no words; describe an image, such as 'a dog on the beach'")
        mentions = [*dict.fromkeys(self.concepts.mentions(sentence))]
        self._check_words(sentence)
        rates = np.asarray(self.concepts.file.rates)
        is_common = all(rates[list(alternatives)].max() >= COMMON_RATE for alternatives in mentions)
        weight = 1.0 if is_common else max(TIE_WEIGHT, 1 - MAX_CONCEPTS_ALONE / len(mentions))
        log_probs = self.concepts.log_probs(mentions, np.asarray(vectors, np.float32))
        if log_probs.size and log_probs.max() < math.log(TAG_PROBABILITY):
            logger.warning(
                f"nothing in '{shortened(sentence)}' is recognised for sure in an image; the closest images follow"
            )
        scores = CONCEPT_WEIGHT * log_probs.sum(1)
        scores += weight * self.joint.sharpness * (projected @ self.joint.sentence_vector(sentence))
        return np.asarray(scores, np.float32)

    def similarities(self, vector: Vector, vectors: NDArray[np.floating[Any]], projected: Vector) -> Vector:
        """Compute how similar an image J is to images I, (N,): 1 for the same image.

        With the cosine s of the joint space and the probabilities p of the T things among the concepts,

            (s(I, J) + w b(I) · b(J)) / (1 + w),    b(I) = sqrt(p(I)) / |sqrt(p(I))|,    w = `THINGS_WEIGHT`

        Args:
            vector: pooled features of J, (D,).
            vectors: pooled features of the images I, (N, D).
            projected: vectors of the images I in the joint space, (N, J).
        """
        things, others = self.concepts.things.tolist(), np.asarray(vectors, np.float32)
        of_image, of_others = (unit(np.sqrt(self.concepts.of_vectors(x, things))) for x in (vector[None], others))
        cosines = projected @ self.project(vector[None])[0]
        return np.asarray((cosines + THINGS_WEIGHT * (of_others @ of_image[0])) / (1 + THINGS_WEIGHT), np.float32)

    def _check_words(self, sentence: str) -> None:
        """Log the words in no vocabulary and in no name of a concept; SettingsError if no other word has content."""
        lang, tokenizer, concepts = self.concepts.file.lang, self.joint.tokenizer, self.concepts
        mentions, words = concepts.mentions(sentence), concepts.split(sentence)
        unknown = [
            unknown_word
            for unknown_word in tokenizer.unknown_words(sentence)
            if concepts.mentions(" ".join(word for word in words if word != unknown_word)) == mentions
        ]
        if not mentions:
            require_content(tokenizer, sentence, unknown, lang)
        if unknown:
            verb, pronoun = ("is", "it") if len(unknown) == 1 else ("are", "them")
            vocabulary = f"the {language_name(lang)} vocabulary"
            left_out = f"searched without {pronoun}{similar_word(tokenizer, unknown)}"
            logger.warning(f"{quoted(unknown)} {verb} not in {vocabulary}; {left_out}")


def unit(vectors: NDArray[np.floating[Any]]) -> Vector:
    """Scale vectors (..., D) to unit length."""
    values = vectors.astype(np.float32)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12), np.float32)
