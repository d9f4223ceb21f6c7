"""Tokenizers and preprocessing of images in the folders of transformers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from limner.errors import BackboneError, MissingExtraError
from limner.features.encoders.transformers import without_output
from limner.features.spec import FeatureKind
from limner.media.image import ImageInput, open_image
from limner.media.modality import IMAGE
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS, WORD_START
from limner.text.words import TextSettings

OFFSET = len(SPECIAL_TOKENS)
"""Number of special tokens, which come before the tokens of the hub: token t of the hub has the id t + `OFFSET`."""
BYTES_START, CONTINUES = "Ġ", "##"
"""Marks of the first piece of a word in vocabularies of bytes, and of the other pieces in WordPiece vocabularies."""

PREAMBLE = re.compile(
    r"(?:in )?(?:the|this|an?) (?:image|picture|photo|photograph),? (?:here )?"
    r"(?:shows|depicts|features|captures|displays|portrays|presents|is of|we see|there is) "
    r"|(?:l'|cette )image (?:montre|représente) |(?:la|esta) imagen muestra ",
    re.IGNORECASE,
)
"""Beginning of a caption that says only that there is an image; without it, the rest is a caption."""

VIDEO = "video_processor"


class HubTokenizer(Tokenizer):
    """A tokenizer of transformers, whose tokens follow the special tokens of `SPECIAL_TOKENS`.

    The end of a sentence and the unknown word are the special tokens; text has no others.

    Attributes:
        lead: space between a prompt and the first word of a sentence.
        first: tokens that all sentences start with, and whose probability is 1.
    """

    lead: str = ""
    first: tuple[int, ...] = ()

    def __init__(self, tokenizer: Any, size: int, lang: str, *, is_source: bool = False) -> None:  # noqa: ANN401
        """Wrap a tokenizer of a network of V tokens and a language; a source is encoded with special tokens."""
        self.settings = TextSettings(lang=lang, tokenise="space", level="bpe", lowercase=False, max_size=OFFSET + size)
        self.splitter = None
        self._hub, self._is_source, self._lock = tokenizer, is_source, Lock()
        pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(range(min(size, len(tokenizer))))]
        pieces += [f"<{token}>" for token in range(len(pieces), size)]
        if any(piece.startswith(CONTINUES) for piece in pieces):
            pieces = [piece[2:] if piece.startswith(CONTINUES) else WORD_START + piece for piece in pieces]
        elif any(piece.startswith(BYTES_START) for piece in pieces):
            pieces = [piece.replace(BYTES_START, WORD_START) for piece in pieces]
        elif not any(piece.startswith(WORD_START) for piece in pieces):
            pieces = [WORD_START + piece for piece in pieces]
        self.entries = (*SPECIAL_TOKEN_STRINGS, *pieces)

    def encode(self, text: str) -> list[int]:
        """Convert a sentence to token ids; a source sentence with the special tokens of the hub, unless it is empty."""
        tokens = self._encode(self.lead + text)
        return [*self.first, *tokens] if tokens else tokens

    def _encode(self, text: str) -> list[int]:
        if self._is_source and not text.strip():
            return []
        options = {"text": text} if self._is_source else {"text_target": text, "add_special_tokens": False}
        with self._lock:  # a tokenizer has a mode for target sentences
            return self._tokens(self._hub(**options)["input_ids"])

    def phrases(self, text: str) -> list[list[int]]:
        """Return the token ids of a phrase at the beginning of a sentence, and within it."""
        return [self._encode(text), self._encode(f" {text}")]

    def _tokens(self, ids: Sequence[int]) -> list[int]:
        unknown = self._hub.unk_token_id if self._hub.unk_token_id != self._hub.eos_token_id else None
        return [SPECIAL_TOKENS.unk if token == unknown else token + OFFSET for token in ids]

    def unknown_pieces(self, text: str) -> tuple[str, ...]:
        """Return nothing: a model of the hub copies no words."""
        return ()

    def decode(self, ids: Iterable[int], detokenise: bool = False, copied: Sequence[str] = ()) -> str:
        """Convert token ids to running text, whatever `detokenise`; special tokens of the hub are left out."""
        tokens = [token - OFFSET for token in ids if token >= OFFSET]
        return " ".join(str(self._hub.decode(tokens, skip_special_tokens=True)).split())


def without_preamble(text: str) -> str:
    """Return a caption without `PREAMBLE`, with a capital letter; other captions unchanged."""
    begin = PREAMBLE.match(text)
    return text if begin is None else text[begin.end() :][:1].upper() + text[begin.end() + 1 :]


def load_part(folder: Path, kind: str | type, **options: Any) -> Any:  # noqa: ANN401
    """Load a tokenizer, a preprocessor or a processor; BackboneError for damage, MissingExtraError without extra."""
    import transformers

    files: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_output():
            loader: Any = getattr(transformers, kind) if isinstance(kind, str) else kind
            return loader.from_pretrained(folder, **files, **options)
    except Exception as error:  # transformers raises almost any exception for damaged files
        reason = " ".join(str(error).split())[:300]
        name = kind if isinstance(kind, str) else "processor"
        if any(package in reason.lower() and find_spec(package) is None for package in ("sentencepiece", "num2words")):
            raise MissingExtraError(f"{folder}: its {name}", "hub") from None
        raise BackboneError(
            f"{folder}: no usable {name} ({reason}); restore its files, or install what is missing"
        ) from None


def load_processor(folder: Path, name: str) -> Any:  # noqa: ANN401
    """Load the processor of images and prompts of a model type; its part for videos needs torchvision, and is none."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name

    known: Any = processor_class_from_name(PROCESSOR_MAPPING_NAMES[name])
    parts = known.get_attributes()

    class ImagesAndText(known):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [part for part in parts if part != VIDEO]

        @classmethod
        def _get_arguments_from_pretrained(cls, *args: Any, **options: Any) -> list[Any]:  # noqa: ANN401
            values: list[Any] = super()._get_arguments_from_pretrained(*args, **options)
            if VIDEO in parts:
                values.insert(parts.index(VIDEO), None)
            return values

    return load_part(folder, ImagesAndText, backend="pil")


class HubPixels:
    """The preprocessing of images, as a backbone whose features are the pixels of the network."""

    modality, specs = IMAGE, ()

    def __init__(self, folder: Path | None) -> None:
        """Load the preprocessing of a folder; None for a network that preprocesses images with its prompt."""
        self._processor = None if folder is None else load_part(folder, "AutoImageProcessor", backend="pil")

    def read(self, source: ImageInput) -> Any:  # noqa: ANN401
        """Open an image as input of the network, (3, H, W), or itself, (H, W, 3), of uint8; MediaError if damaged."""
        if self._processor is None:
            return np.asarray(open_image(source))
        return self._processor(images=open_image(source), return_tensors="np")["pixel_values"][0]

    def __call__(self, inputs: Any) -> dict[FeatureKind, Any]:  # noqa: ANN401
        """Return stacked results of `read`, (B, 3, H, W)."""
        return {"maps": inputs}
