"""Tokenizers and preprocessing of images in the folders of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from limner.errors import BackboneError
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


class HubTokenizer(Tokenizer):
    """A tokenizer of transformers, whose tokens follow the special tokens of `SPECIAL_TOKENS`.

    The end of a sentence and the unknown word are the special tokens; text has no others.
    """

    def __init__(self, tokenizer: Any, size: int, lang: str, *, is_source: bool = False) -> None:  # noqa: ANN401
        """Wrap a tokenizer.

        Args:
            tokenizer: tokenizer of transformers.
            size: number V of tokens of the network.
            lang: language of the sentences.
            is_source: whether the sentences are the input of a translator, which has the special tokens of the hub.
        """
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
        if self._is_source and not text.strip():
            return []
        options = {"text": text} if self._is_source else {"text_target": text, "add_special_tokens": False}
        with self._lock:  # a tokenizer has a mode for target sentences
            return self._tokens(self._hub(**options)["input_ids"])

    def phrases(self, text: str) -> list[list[int]]:
        """Return the token ids of a phrase at the beginning of a sentence, and within it."""
        return [self.encode(text), self.encode(f" {text}")]

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


def load_part(folder: Path, kind: str, **options: Any) -> Any:  # noqa: ANN401
    """Load a tokenizer or a preprocessor of a folder; BackboneError if it is missing or damaged."""
    import transformers

    files: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_output():
            return getattr(transformers, kind).from_pretrained(folder, **files, **options)
    except Exception as error:  # transformers raises almost any exception for damaged files
        reason = " ".join(str(error).split())[:300]
        raise BackboneError(
            f"{folder}: no usable {kind} ({reason}); restore its files, or install what is missing"
        ) from None


class HubPixels:
    """The preprocessing of images, as a backbone whose features are the pixels of the network."""

    modality, specs = IMAGE, ()

    def __init__(self, folder: Path) -> None:
        self._processor = load_part(folder, "AutoImageProcessor", backend="pil")

    def read(self, source: ImageInput) -> Any:  # noqa: ANN401
        """Open an image, and return the input of the network, (3, H, W); MediaError if it cannot be read."""
        return self._processor(images=open_image(source), return_tensors="np")["pixel_values"][0]

    def __call__(self, inputs: Any) -> dict[FeatureKind, Any]:  # noqa: ANN401
        """Return stacked results of `read`, (B, 3, H, W)."""
        return {"maps": inputs}
