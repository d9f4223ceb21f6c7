"""Translation models at work: sentences in, with or without pictures, sentences out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from limner.data.dataset import FeatureSource, GenerationInput, SourceLanguage
from limner.decoding.beam_search import Hypothesis
from limner.errors import MediaError, SettingsError
from limner.features.encoders.load import Backbone
from limner.inference.captioner import BackboneFeatures, changed_search, load_backbone_of, new_item
from limner.inference.explain import Explanation, explain
from limner.inference.generate import answer, require_ensemble
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

MOST_TOKENS = 1000
"""A source sentence of more is no sentence."""
TRANSLATION_BATCH_SIZE = 64

Missing = Literal["refuse", "text"]
"""What is done about a sentence without a picture, by a model that learned with pictures."""

logger = logging.getLogger(__name__)


class Translation(NamedTuple):
    """What a sentence was translated to."""

    text: str
    tokens: tuple[str, ...]
    """The words and signs the text was put together from, as metrics on tokens see them."""
    log_prob: float
    """Natural logarithm of its probability given the source sentence and the picture."""
    score: float
    """What it was ranked by; see `DecodingSettings`."""
    ids: tuple[int, ...] = ()
    """In the model's vocabulary."""
    ended: bool = True
    """False where it was cut off at `max_length`."""


NOTHING = Translation("", (), 0.0, 0.0)
"""The translation of an empty line, for which no model is asked."""


class Asked(NamedTuple):
    """What a model is asked, and of which of the sentences; empty ones are not among them."""

    rows: list[int]
    queries: list[GenerationInput]
    pictures: FeatureSource | None


class Translator:
    """A model that translates, or an ensemble of several."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None) -> None:
        """Join models of one vocabulary.

        Args:
            models: at least one.
            backbone: looks at new pictures; None for models that look at none.

        Raises:
            RunError: the models' vocabularies or features differ.
            SettingsError: they do not translate.
        """
        require_ensemble(models)
        self.source, self.lang = languages(models[0])
        self.models, self.backbone = tuple(models), backbone

    @classmethod
    def load(cls, *runs: Path | str, backbone: str | None = None, device: str = "cpu", look: bool = True) -> Self:
        """Load trained models.

        Args:
            runs: run folders; several make an ensemble.
            backbone: where the network is that made the features, if it has moved since the training.
            device: 'cpu' or 'cuda'.
            look: false where no picture will be given; the backbone is then not loaded.

        Raises:
            RunError: a folder holds no whole model.
            SettingsError: the models do not translate.
            BackboneError: the backbone is not where it was.
        """
        models = [load_trained_model(run, device) for run in runs]
        return cls(models, load_backbone_of(models[0], backbone, device) if look else None)

    @property
    def uses_image(self) -> bool:
        """Whether it looks at pictures."""
        return any(model.config.features and model.model.uses_image for model in self.models)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        pictures: Sequence[Path | str | None] | None = None,
        missing: Missing = "refuse",
        batch_size: int = TRANSLATION_BATCH_SIZE,
        progress: Callable[[int, int], None] | None = None,
        **search: Any,  # noqa: ANN401
    ) -> list[list[Translation]]:
        """Translate sentences.

        Args:
            sentences: in the language of `source`, running text.
            pictures: for each sentence the file of its picture, or None.
            missing: what a model that looks does with a sentence that has no picture: 'refuse' it, or translate by the
                'text' alone.
            batch_size: sentences translated together; it changes no result.
            progress: told the sentences that are done, and how many there are.
            search: settings of `DecodingSettings` to change, such as beam_size=6, n_best=3.

        Returns:
            For each sentence its `n_best` translations, the best first; for an empty one the empty translation.

        Raises:
            SettingsError: a sentence has far too many words or lacks its picture, there are not as many pictures as
                sentences, or a search setting is misspelt or does not fit.
            MediaError: a file is not a picture that can be read.
        """
        settings = changed_search(self.models[0].recipe.decoding, search)
        asked = self.ask(sentences, pictures, missing)
        self._warn_of_unreadable([query.source or "" for query in asked.queries])
        found = answer(self.models, asked.queries, asked.pictures, settings, batch_size=batch_size, progress=progress)
        cut = sum(not hypotheses[0].ended for hypotheses in found)
        if cut:
            logger.warning(
                "%d of %d translations came to no end within %d words and were cut off there; raise max_length, "
                "or cut what is translated into sentences",
                cut,
                len(sentences),
                settings.max_length,
            )
        translations = [[NOTHING] for _ in sentences]
        for row, hypotheses in zip(asked.rows, found, strict=True):
            translations[row] = [_translation(self.models[0].tokenizer, one) for one in hypotheses]
        return translations

    def explain(
        self,
        sentences: Sequence[str],
        translations: Sequence[Translation],
        *,
        pictures: Sequence[Path | str | None] | None = None,
        missing: Missing = "refuse",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Explanation | None]:
        """Tell what each word of a translation was made from; of an ensemble, what the first model made it from.

        Args:
            sentences: as they were translated.
            translations: one of each.
            pictures: as of `translate`, and so are the others.
            missing: what is done about a sentence without a picture.
            progress: told the sentences that are done, and how many there are.

        Returns:
            None for an empty sentence.
        """
        asked = self.ask(sentences, pictures, missing)
        chosen = [translations[row] for row in asked.rows]
        said = [Hypothesis(one.ids, one.log_prob, one.score, one.ended) for one in chosen]
        explained: list[Explanation | None] = [None] * len(sentences)
        found = explain(self.models[0], asked.queries, said, asked.pictures, progress=progress)
        for row, one in zip(asked.rows, found, strict=True):
            explained[row] = one
        return explained

    def ask(
        self, sentences: Sequence[str], pictures: Sequence[Path | str | None] | None, missing: Missing = "refuse"
    ) -> Asked:
        """Check sentences and pictures, and pose them as queries; arguments and errors as of `translate`."""
        if missing not in get_args(Missing):
            raise SettingsError(f"missing: '{missing}', expected one of {', '.join(get_args(Missing))}")
        if isinstance(sentences, str):  # whose letters would be translated one by one
            raise SettingsError(f"sentences: '{sentences}' is one sentence, expected a list: put it in brackets")
        pictures = [None] * len(sentences) if pictures is None else pictures
        if len(pictures) != len(sentences):
            raise SettingsError(f"{len(sentences)} sentences and {len(pictures)} pictures: give one picture a sentence")
        rows = [row for row, text in enumerate(sentences) if self._tokens(row, text)]
        self._check_pictures([(row, pictures[row]) for row in rows], missing)
        queries = [GenerationInput(new_item(sentences[row], pictures[row]), sentences[row], ()) for row in rows]
        return Asked(rows, queries, BackboneFeatures(self.backbone) if self.backbone is not None else None)

    def _tokens(self, row: int, text: str) -> int:
        """How many tokens the model reads of a sentence; far too many are refused."""
        count = len(self.source.tokenizer.encode(text))
        if count > MOST_TOKENS:
            raise SettingsError(
                f"sentence {row + 1} has {count:,} tokens, expected at most {MOST_TOKENS:,}: "
                "cut it into sentences, one a line"
            )
        return count

    def _check_pictures(self, pictures: Sequence[tuple[int, Path | str | None]], missing: Missing) -> None:
        """Refuse what is missing before anything is translated; `pictures` come with the rows of their sentences."""
        given = dict.fromkeys(Path(path) for _, path in pictures if path is not None)
        for path in given:
            if not path.is_file():
                raise MediaError(f"{path}: no such picture; put the file there or leave it out")
        if not self.uses_image:
            if given:
                logger.warning("this model was trained without pictures: it translates by the text alone")
            return
        if given and self.backbone is None:
            raise SettingsError("pictures were given to a translator that was loaded with look=False; load it without")
        blind = [row for row, path in pictures if path is None]
        if blind and missing == "refuse":
            raise SettingsError(
                f"sentence {blind[0] + 1} has no picture, and the model was trained with pictures: give one, "
                "or let it translate by the text alone (missing='text'; limner translate --missing text)"
            )

    def _warn_of_unreadable(self, texts: Sequence[str]) -> None:
        """Say which words the model cannot tell from each other: it takes all of them for <unk>."""
        tokenizer, unknown = self.source.tokenizer, set()
        for text in texts:
            if SPECIAL_TOKENS.unk in tokenizer.encode(text):
                unknown |= {word for word in tokenizer.words(text) if SPECIAL_TOKENS.unk in tokenizer.encode(word)}
        if unknown:
            shown = ", ".join(f"'{word}'" for word in sorted(unknown)[:5]) + (", …" if len(unknown) > 5 else "")
            logger.warning("the model cannot read %s and takes it for <unk>: what it makes of that is a guess", shown)


def languages(model: TrainedModel) -> tuple[SourceLanguage, str]:
    """The language a model translates from, with its vocabulary, and the one it translates to.

    Raises:
        SettingsError: it does not translate.
    """
    if model.source is None:
        raise SettingsError(
            f"a model '{model.recipe.model.name}' does not translate: use 'limner describe', or train one that does "
            "(a recipe calixto2017/…)"
        )
    return model.source, model.recipe.data.lang


def _translation(tokenizer: Tokenizer, found: Hypothesis) -> Translation:
    text, words = tokenizer.decode(found.tokens, detokenise=True), tokenizer.decode(found.tokens).split()
    return Translation(text, tuple(words), found.log_prob, found.score, found.tokens, found.ended)
