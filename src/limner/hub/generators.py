"""Captioners and translators of the hub: generators of `limner.generation`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from limner.decoding.settings import DecodingSettings
from limner.errors import BackboneError, RunError, SettingsError
from limner.features.encoders.transformers import without_output
from limner.features.spec import FeatureKind
from limner.generation.captioning import CAPTION_BATCH_SIZE, BaseCaptioner
from limner.generation.request import Features, Request
from limner.generation.rules import CaptionRules
from limner.generation.translating import BaseTranslator
from limner.hub.families import family_of
from limner.hub.networks import HubModels, HubNetwork
from limner.hub.tokens import HubTokenizer
from limner.media.image import ImageInput, image_name, open_image
from limner.media.modality import IMAGE
from limner.progress import Progress
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.runs.trained_model import TrainedModel

DEFAULT_LANG = "en"
"""Language of captions, which the files of a captioner do not name."""


class HubGenerator:
    """What captioners and translators share: network, tokenizer and settings of a folder."""

    models: Sequence[TrainedModel] = ()
    """None: a model of the hub is no trained run."""
    source_lang: str | None = None
    """Language that is translated from; None for a captioner."""

    def __init__(self, folder: Path, network: HubNetwork, lang: str) -> None:
        """Take a loaded network, and read its tokenizer; BackboneError if it cannot be loaded."""
        self._folder, self.network, self._lang = folder, network, lang
        self.hub_tokenizer = load_part(folder, "AutoTokenizer")
        network.has_unknown(self.hub_tokenizer.unk_token_id)
        self._tokenizer = HubTokenizer(self.hub_tokenizer, network.tokens, lang)
        self._decoding, self._models = network.decoding, dict[str, HubModels]()

    @property
    def folder(self) -> Path:
        """Folder of the model."""
        return self._folder

    @property
    def lang(self) -> str:
        """Language of the sentences."""
        return self._lang

    @property
    def tokenizer(self) -> HubTokenizer:
        """Tokenizer of the sentences."""
        return self._tokenizer

    @property
    def decoding(self) -> DecodingSettings:
        """Decoding settings of `generation_config.json`, the default of all methods."""
        return self._decoding

    @property
    def uses_image(self) -> bool:
        """Whether sentences depend on an image."""
        return self.network.uses_image

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.network.parameters

    @property
    def architecture(self) -> str:
        """Name of the family."""
        return str(self.network.config.model_type)

    def model(self, settings: DecodingSettings) -> HubModels:
        """Return the network as the search sees it."""
        return self._models.setdefault(settings.precision, HubModels(self.network, settings.precision))


class LogProb(NamedTuple):
    """Probability of a given sentence."""

    value: float
    """Natural logarithm of the probability, end of the sentence included."""
    tokens: int
    """Number of tokens, the end of the sentence included."""
    unknown: int
    """Number of tokens that are not in the vocabulary."""


class HubPixels:
    """The preprocessing of a captioner, as the backbone whose features are the pixels of the network."""

    modality, specs = IMAGE, ()

    def __init__(self, folder: Path) -> None:
        """Read the preprocessing of a folder; BackboneError if it cannot be loaded."""
        self._processor = load_part(folder, "AutoImageProcessor", backend="pil")

    def read(self, source: ImageInput) -> Any:  # noqa: ANN401
        """Open an image, and return the input of the network, (3, H, W); MediaError if it cannot be read."""
        return self._processor(images=open_image(source), return_tensors="np")["pixel_values"][0]

    def __call__(self, inputs: Any) -> dict[FeatureKind, Any]:  # noqa: ANN401
        """Return stacked results of `read`, (B, 3, H, W)."""
        return {"maps": inputs}


class HubCaptioner(HubGenerator, BaseCaptioner):
    """Captions of images by a model of the hub; see `limner.Captioner`."""

    def __init__(self, folder: Path, network: HubNetwork) -> None:
        """Take a loaded network, and read its tokenizer and its preprocessing of images; BackboneError if it cannot."""
        super().__init__(folder, network, DEFAULT_LANG)
        self.backbone = HubPixels(folder)
        self._rules = CaptionRules(None, None)

    @property
    def rules(self) -> CaptionRules:
        """Rules without effect: a model of the hub has no concepts."""
        return self._rules

    def source_of(self, image: ImageInput) -> ImageInput:
        """Return the image itself."""
        return image

    def features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the port that computes the pixels of the network."""
        return lambda requests: [{"maps": self.backbone.read(request.source)} for request in requests]

    def log_probs(
        self, images: Sequence[ImageInput], sentences: Sequence[str], on_progress: Progress | None = None
    ) -> list[LogProb]:
        """Compute log P(w | I) of each sentence and the image at its position.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a sentence has no words.
        """
        targets = [self.tokenizer.encode(text) for text in sentences]
        if not all(targets):
            raise SettingsError(f"expected a sentence of at least one word, got '{sentences[targets.index([])]}'")
        port, results = self.features_port(images), list[LogProb]()
        for begin in range(0, len(sentences), CAPTION_BATCH_SIZE):
            rows = range(begin, min(begin + CAPTION_BATCH_SIZE, len(sentences)))
            requests = [Request(self, image_name(images[row]), self.decoding, source=images[row]) for row in rows]
            for request, features in zip(requests, port(requests), strict=True):
                request.features = features
            results += self._log_probs(requests, [targets[row] for row in rows])
            if on_progress is not None:
                on_progress(len(results), len(sentences))
        return results

    def _log_probs(self, requests: Sequence[Request], targets: Sequence[Sequence[int]]) -> list[LogProb]:
        model = self.model(self.decoding)
        memory, totals = model.encode(requests), np.zeros(len(requests))
        state, last = model.start(memory), np.full((len(requests), 1), SPECIAL_TOKENS.bos)
        for position in range(1 + max(map(len, targets))):
            next_tokens, state = model.step(last, memory, state)
            last = np.array([[*target, SPECIAL_TOKENS.eos][min(position, len(target))] for target in targets])[:, None]
            counted = [position <= len(target) for target in targets]
            totals += np.where(counted, next_tokens.gather(last[:, :, None])[:, 0, 0], 0.0)
        return [
            LogProb(float(total), len(target) + 1, list(target).count(SPECIAL_TOKENS.unk))
            for total, target in zip(totals, targets, strict=True)
        ]


class HubTranslator(HubGenerator, BaseTranslator):
    """Translations by a model of the hub; see `limner.Translator`."""

    backbone = None

    def __init__(self, folder: Path, network: HubNetwork, source: str | None = None, to: str | None = None) -> None:
        """Take a loaded network, and read its tokenizer; with many languages, choose two.

        Args:
            folder: folder of the model.
            network: its network.
            source: language of the sentences; None for the only one, or the default of the tokenizer.
            to: language of the translations; None for the only one, or the default of `generation_config`.

        Raises:
            BackboneError: the tokenizer cannot be loaded.
            SettingsError: the model has no such language.
        """
        super().__init__(folder, network, to or "")
        hub = self.hub_tokenizer
        if to is not None:
            network.forced = _language(hub, to)
        if source is not None:
            _language(hub, source)
            hub.src_lang = source
        self.source_lang = source or getattr(hub, "src_lang", None) or getattr(hub, "source_lang", None) or ""
        self._lang = to or getattr(hub, "tgt_lang", None) or getattr(hub, "target_lang", None) or ""
        size = max(network.tokens, len(hub))
        self.source_tokenizer = HubTokenizer(hub, size, self.source_lang, is_source=True)

    @property
    def rules(self) -> None:
        """None: translations have no rules."""
        return


def _language(tokenizer: Any, lang: str) -> int:  # noqa: ANN401
    """Return the token of a language, `de`, `__de__` or `deu_Latn`; SettingsError if there is none."""
    vocabulary = tokenizer.get_vocab()
    found = [vocabulary[name] for name in (lang, f"__{lang}__", f">>{lang}<<") if name in vocabulary]
    if not found:
        raise SettingsError(f"language '{lang}': not among the tokens of the model; name it as the model does")
    return int(found[0])


def load_part(folder: Path, kind: str, **options: Any) -> Any:  # noqa: ANN401
    """Load a tokenizer or a preprocessor of a folder; BackboneError if it is missing or damaged."""
    import transformers

    try:
        with without_output():
            return getattr(transformers, kind).from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **options
            )
    except Exception as error:  # transformers raises almost any exception for damaged files
        reason = " ".join(str(error).split())[:300]
        raise BackboneError(f"{folder}: no usable {kind} ({reason}); restore its files") from None


def load_captioner(folder: Path, device: str = "cpu") -> HubCaptioner:
    """Load a captioner of the hub; RunError for a model that does not describe images, otherwise as `load`."""
    model = load(folder, device=device)
    if not isinstance(model, HubCaptioner):
        raise RunError(f"{folder}: expected a captioning model, got one that translates: use 'limner translate'")
    return model


def load(
    folder: Path, *, device: str = "cpu", source: str | None = None, to: str | None = None
) -> HubCaptioner | HubTranslator:
    """Load a captioner or a translator of the hub.

    Args:
        folder: folder in the format of transformers.
        device: 'cpu' or 'cuda'.
        source: language of the sentences of a translator of many languages.
        to: language of its translations.

    Raises:
        RunError: the family is not known, or only compares images and sentences.
        BackboneError: a file is missing or damaged, or refers to code.
        ResourceError: there is not enough memory.
    """
    family = family_of(folder)
    if not issubclass(family, HubNetwork):
        raise RunError(
            f"{folder}: expected a model that generates sentences, got one that compares images and sentences: use "
            "'limner score', or 'limner index --retriever'"
        )
    network = family.load(folder, device)
    return HubCaptioner(folder, network) if family.task == "describe" else HubTranslator(folder, network, source, to)
