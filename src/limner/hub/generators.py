"""Captioners and translators of the hub: generators of `limner.generation`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from limner.decoding.scoring import SentenceScore
from limner.decoding.search import score_tokens
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import MediaError, RunError, SettingsError
from limner.generation.captioning import CAPTION_BATCH_SIZE, BaseCaptioner, ImageT
from limner.generation.request import Features, Request
from limner.generation.rules import CaptionRules
from limner.generation.sentences import MAX_SOURCE_TOKENS, images_of_sentences, require_source_length
from limner.generation.translation import BaseTranslator
from limner.hub.families import family_of
from limner.hub.inputs import OFFSET, HubPixels, HubTokenizer, load_part, without_preamble
from limner.hub.networks import HubModels, HubNetwork
from limner.hub.settings import HubSettings
from limner.media.image import ImageInput, ImageInputs, image_name
from limner.metrics import perplexity
from limner.progress import Progress
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.hub.families.joint_space import HubSpace
    from limner.runs.trained_model import TrainedModel


class HubGenerator:
    """What captioners and translators share: network, tokenizer and settings of a folder."""

    models: Sequence[TrainedModel] = ()
    """None: a model of the hub is no trained run."""
    source_lang: str | None = None
    """Language that is translated from; None for a captioner."""

    def __init__(self, network: HubNetwork, lang: str) -> None:
        """Take a loaded network, and read its tokenizer; BackboneError if it cannot be loaded."""
        self.network, self.lang = network, lang
        processor = getattr(network, "processor", None)
        self.hub_tokenizer = load_part(network.folder, "AutoTokenizer") if processor is None else processor.tokenizer
        network.set_unknown(self.hub_tokenizer.unk_token_id)
        tokenizer = HubTokenizer(self.hub_tokenizer, network.tokens, lang)
        self.tokenizer: Tokenizer = tokenizer
        self.decoding, self._models = network.default_decoding(), dict[str, HubModels]()
        self.parameters = network.parameters
        self.architecture = str(network.config.model_type)
        self.uses_image = network.task == "describe"
        if self.uses_image:
            tokenizer.lead = network.lead
            tokenizer.first = () if network.forced is None else (network.forced + OFFSET,)

    @property
    def folder(self) -> Path:
        """Folder of the model."""
        return self.network.folder

    def model(self, settings: DecodingSettings) -> HubModels:
        """Return the network for the search; SettingsError where `max_length` is above its positions."""
        if settings.max_length > self.network.positions:
            raise SettingsError(
                f"max_length {settings.max_length}: expected at most {self.network.positions}, the positions of the "
                "model; lower it (--max-length)"
            )
        if settings.precision not in self._models:
            self._models[settings.precision] = HubModels(self.network, settings.precision)
        return self._models[settings.precision]


class HubCaptioner(HubGenerator, BaseCaptioner):
    """Captions of images by a model of the hub; see `limner.Captioner`."""

    def __init__(self, network: HubNetwork) -> None:
        super().__init__(network, network.settings.lang)
        self.backbone = HubPixels(None if network.is_prompted else network.folder)
        self.rules, self.changed = CaptionRules(None, None), network.settings.changed

    def describe_each(
        self,
        images: Sequence[ImageT],
        **options: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Sentence] | MediaError]]:
        """Generate captions without preambles of a model with a prompt, unless the request has words of the caption.

        The service, which streams the beginning of a caption before its end is known, keeps them.
        """
        words = any(options.get("prefixes") or ()) or options.get("must_include")
        keeps = words or self.network.settings.keep_preamble or not self.network.is_prompted
        for image, result in super().describe_each(images, **options):
            if not keeps and isinstance(result, list):
                result = [sentence._replace(text=without_preamble(sentence.text)) for sentence in result]
            yield image, result

    def source_of(self, image: ImageInput) -> ImageInput:
        """Return the image itself."""
        return image

    def features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the port that computes the pixels of the network."""
        return lambda requests: [{"maps": self.backbone.read(request.source)} for request in requests]

    def score(
        self, images: ImageInputs, sentences: Sequence[str], on_progress: Progress | None = None
    ) -> list[SentenceScore]:
        """Compute log P(w | I) of sentences and images, or one image; MediaError or SettingsError for bad inputs."""
        inputs = images_of_sentences(sentences, images)
        targets = [self.tokenizer.encode(text) for text in sentences]
        if not all(targets):
            raise SettingsError(f"expected a sentence of at least one word, got '{sentences[targets.index([])]}'")
        for row, target in enumerate(targets):
            require_source_length(row, len(target), self.network.positions - 1)
        port, results = self.features_port(inputs), list[float]()
        for begin in range(0, len(sentences), CAPTION_BATCH_SIZE):
            rows = range(begin, min(begin + CAPTION_BATCH_SIZE, len(sentences)))
            requests = [Request(self, image_name(inputs[row]), self.decoding, source=inputs[row]) for row in rows]
            for request, features in zip(requests, port(requests), strict=True):
                request.features = features
            results += self._totals(requests, [targets[row] for row in rows])
            if on_progress is not None:
                on_progress(len(results), len(sentences))
        start = int(self.network.forced is not None)  # a forced token has the probability 1, and is not counted
        counts = [(len(target) - start + 1, target.count(SPECIAL_TOKENS.unk)) for target in targets]
        return [
            SentenceScore(total, count, perplexity(total, count).value, unknown)
            for total, (count, unknown) in zip(results, counts, strict=True)
        ]

    def _totals(self, requests: Sequence[Request], targets: Sequence[Sequence[int]]) -> list[float]:
        model = self.model(self.decoding)
        tokens = np.full((len(targets), 1 + max(map(len, targets))), SPECIAL_TOKENS.eos)
        for row, target in enumerate(targets):
            tokens[row, : len(target)] = target
        log_probs, _ = score_tokens(model, model.encode(requests), tokens)
        return [
            float(row[: len(target) + 1].sum(dtype=np.float64)) for row, target in zip(log_probs, targets, strict=True)
        ]


class HubTranslator(HubGenerator, BaseTranslator):
    """Translations by a model of the hub; see `limner.Translator`."""

    backbone = rules = None

    def __init__(self, network: HubNetwork, source: str | None = None, to: str | None = None) -> None:
        """Take a loaded network, and choose its languages; see `load` for arguments and errors."""
        super().__init__(network, to or "")
        hub = load_part(network.folder, "AutoTokenizer")  # another instance: a target sentence changes its mode
        if to is not None:
            network.forced = _language(hub, to)[1]
        elif network.forced is None and network.names_language:
            raise SettingsError(
                f"{network.folder}: translates to several languages; name one with to (limner translate --to), or as "
                "forced_bos_token_id in its generation_config.json"
            )
        if source is not None:
            hub.src_lang = _language(hub, source)[0]
        named = (getattr(hub, name, None) for name in ("src_lang", "source_lang"))
        self.source_lang = source or next(filter(None, named), "")
        self.lang = to or getattr(hub, "tgt_lang", None) or getattr(hub, "target_lang", None) or ""
        if not self.lang and network.forced is not None:
            self.lang = str(hub.convert_ids_to_tokens(network.forced)).strip("_")
        self.max_source_tokens = min(MAX_SOURCE_TOKENS, network.positions)
        size = max(network.tokens, len(hub))
        self.source_tokenizer = HubTokenizer(hub, size, self.source_lang, is_source=True)


def _language(tokenizer: Any, lang: str) -> tuple[str, int]:  # noqa: ANN401
    """Return the name of a language, and its token: `deu_Latn`, `__de__`, or the only `de_…` of `de`."""
    tokens, special = tokenizer.get_vocab(), {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    if names := [name for name in (f"__{lang}__", *({lang} & special)) if name in tokens]:
        return lang, int(tokens[names[0]])
    longer = [name for name in special if name.startswith(f"{lang}_")]
    if len(longer) != 1:
        raise SettingsError(f"language '{lang}': not among the tokens of the model; name it as the model does")
    return longer[0], int(tokens[longer[0]])


WORK = {
    "describe": "describes images: use 'limner describe'",
    "translate": "translates sentences: use 'limner translate'",
    "match": "compares images and sentences: use 'limner score', or 'limner index --retriever'",
}
"""What a model of each task does, and the command for it."""


def load(
    folder: Path,
    tasks: Sequence[str],
    *,
    device: str = "cpu",
    source: str | None = None,
    to: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> HubCaptioner | HubTranslator | HubSpace:
    """Load a captioner, a translator or a joint space of the hub.

    Args:
        folder: folder in the format of transformers.
        tasks: expected tasks among 'describe', 'translate' and 'match'.
        device: 'cpu' or 'cuda'.
        source: language of the sentences, of a translator of many languages; None for the default of its tokenizer.
        to: language of its translations; None for the default of its `generation_config`.
        settings: see `HubSettings`.

    Raises:
        RunError: the family is not known, or has another task.
        BackboneError: a file is missing or damaged, or refers to code.
        SettingsError: the model has no such language, or several and none is named, or reads no prompt.
        ResourceError: there is not enough memory.
    """
    family = family_of(folder)
    expected = ("translate",) if source or to else tasks
    if family.task not in expected:
        raise RunError(f"{folder}: expected a model to {' or '.join(expected)}, got one that {WORK[family.task]}")
    options = HubSettings.parse({name: value for name, value in settings.items() if value is not None}, str(folder))
    useless = () if family.is_prompted else ("prompt", "keep_preamble", *(["lang"] * (family.task != "describe")))
    if names := [name for name in useless if settings.get(name)]:
        work = WORK[family.task].partition(":")[0]
        raise SettingsError(f"{names[0]}: has no effect on {folder}, which {work} without a prompt; leave it out")
    network = family(folder, device, options)
    if not isinstance(network, HubNetwork):
        return cast("HubSpace", network)
    return HubCaptioner(network) if family.task == "describe" else HubTranslator(network, source, to)
