"""Models that write text: with a prompt (chat models, Florence-2, BLIP-2) and without (BLIP, GIT, translators).

Florence-2: Xiao et al. (2024); BLIP-2: Li et al. (2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from limner.errors import BackboneError, RunError, SettingsError, did_you_mean
from limner.generation.request import Request
from limner.hub.inputs import load_processor
from limner.hub.networks import (
    DEFAULTS,
    Cache,
    EncoderDecoder,
    HubNetwork,
    Sequence2Sequence,
    State,
    cache_of,
    tensors_of,
)
from limner.hub.settings import HubSettings
from limner.layers.functional import repeat_rows
from limner.runs.pretrained import model_type
from limner.text.vocab import SPECIAL_TOKENS

PROMPTS = {
    "en": "Describe this image in one sentence.",
    "de": "Beschreibe dieses Bild in einem Satz.",
    "es": "Describe esta imagen en una frase.",
    "fr": "Décris cette image en une phrase.",
    "zh": "请用一句话描述这张图片。",
}
"""Default prompt of chat models by the language of the caption."""


def default_prompt(family: str, lang: str) -> str:
    """Return the request of a caption to a family in a language; SettingsError if there is none."""
    if family == "paligemma":
        return f"caption {lang}"
    prompts = {"florence2": {"en": "<CAPTION>"}, "blip-2": {"en": ""}}.get(family, PROMPTS)
    if lang not in prompts:
        hint = did_you_mean(lang, prompts) or "; give a prompt in the language instead"
        raise SettingsError(f"lang '{lang}': no default prompt; expected one of {', '.join(prompts)}{hint}")
    return prompts[lang]


class Prompt(NamedTuple):
    """Memory of a decoder: the image and the prompt, with P tokens, padded on the left."""

    mask: Tensor
    """1 where a token is no padding, (N, P)."""
    position: Tensor
    """Position of the last token, (N, 1), or (N, axes, 1) where positions have several axes."""
    logits: Tensor
    """Logits of the first token of a sentence, (N, 1, V)."""
    cache: Cache


class PromptedModel(Sequence2Sequence):
    """A decoder whose first tokens are the image and the prompt; or an encoder of both, and a decoder.

    The processor of the folder makes the tokens: by its chat template, or of the prompt alone where it has none. The
    inputs of a decoder and its positions are made by the hooks of `generate`.
    """

    model_types: ClassVar[tuple[str, ...]] = (
        *("florence2", "gemma3", "idefics3", "llava", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"),
    )
    task, kind, is_prompted, default_length = "describe", "AutoModelForImageTextToText", True, 64

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        """Load a folder; SettingsError for a language without prompt, BackboneError for a missing chat template."""
        family = model_type(folder) or ""
        prompt = default_prompt(family, settings.lang) if settings.prompt is None else settings.prompt
        super().__init__(folder, device, settings)
        self.processor = load_processor(folder, family)
        self.is_decoder = not self.decoder.config.is_encoder_decoder
        self.text = f"<image>{prompt}" if family == "paligemma" else prompt
        if template := getattr(self.processor, "chat_template", None):
            turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}
            answer = {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
            fill = partial(self.processor.tokenizer.apply_chat_template, chat_template=template, tokenize=False)
            try:
                self.text = str(fill([turn], add_generation_prompt=True))
                begin = str(fill([turn, answer])).removeprefix(self.text)
            except Exception as error:  # a template may raise anything, and the sandbox refuses code
                raise BackboneError(f"{folder}: its chat template cannot be used ({error}); restore it") from None
            self.lead = begin[: len(begin) - len(begin.lstrip())]  # space that an answer begins with
        elif family not in ("blip-2", "florence2", "paligemma"):
            raise BackboneError(f"{folder}: no chat template; choose the instruction-tuned checkpoint of the model")

    @property
    def ends(self) -> tuple[int | None, int | list[int] | None]:
        """Token of the hub before the first token, 0 of a decoder, which does not read it; and what ends sentences."""
        settings = self.decoder.generation_config
        end = settings.eos_token_id
        if end is None:
            end = self.decoder.config.get_text_config(decoder=True).eos_token_id
        return settings.decoder_start_token_id if self.decoder.config.is_encoder_decoder else 0, end

    def inputs_of(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the processor's inputs for the prompt and the images, (H, W, 3), of requests."""
        images = [[Image.fromarray(np.asarray(request.features["maps"]))] for request in requests if request.features]
        padding = {"padding": True, "padding_side": "left"}
        batch = self.processor(text=[self.text] * len(images), images=images, return_tensors="pt", **padding)
        return self.to_device(batch)

    def encode(self, inputs: Mapping[str, Tensor]) -> Prompt | tuple[Tensor, Tensor]:
        """Compute the keys and values of the image and the prompt, or their states (N, S, H)."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if not self.is_decoder:
            read = {**inputs, "input_ids": None if "inputs_embeds" in inputs else ids}
            first = self._ids[SPECIAL_TOKENS.bos].expand(len(ids), 1)
            return self.decoder(**read, decoder_input_ids=first, use_cache=False).encoder_last_hidden_state, mask
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        cache = DynamicCache()  # all layers keep all tokens, of models with a window as well
        cache.layers = [DynamicLayer() for _ in range(self.decoder.config.get_text_config().num_hidden_layers)]
        positions = self.decoder._prepare_position_ids_for_generation(ids, dict(inputs))
        output = self._run(is_first_iteration=True, position_ids=positions, cache=cache, **inputs)
        position = positions[..., -1:].movedim(-2, 0)
        position = position.expand(len(ids), *position.shape[1:])
        return Prompt(mask, position, output.logits[:, -1:], tensors_of(output.cache))

    def decode(self, ids: Tensor, memory: Any, state: State) -> tuple[Tensor, State]:  # noqa: ANN401
        """Run the decoder on tokens of the hub (R, 1); the first token is computed with the prompt."""
        if not self.is_decoder:
            return super().decode(ids, memory, state)
        rows = len(ids)
        if state is None:
            cache = tuple(tuple(repeat_rows(part, rows) for part in layer) for layer in memory.cache)
            return repeat_rows(memory.logits, rows), cache
        steps = state[0][0].shape[2] + 1 - memory.mask.shape[1]
        mask = pad(repeat_rows(memory.mask, rows), (0, steps), value=1)
        position = repeat_rows(memory.position, rows).movedim(0, -2) + steps
        output = self._run(input_ids=ids, attention_mask=mask, position_ids=position, cache=cache_of(state))
        return output.logits, tensors_of(output.cache)

    def _run(self, **inputs: Any) -> Any:  # noqa: ANN401
        return self.decoder(**self.decoder.prepare_inputs_for_generation(**inputs, use_cache=True))


class Blip2(PromptedModel):
    """BLIP-2: a Q-Former makes tokens of the image, which OPT or T5 reads before the prompt."""

    model_types: ClassVar[tuple[str, ...]] = ("blip-2",)

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        return self.network.language_model

    def inputs_of(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Return the embeddings of the image and the prompt, with their mask."""
        inputs = super().inputs_of(requests)
        ids = inputs["input_ids"]
        embeddings = self.decoder.get_input_embeddings()(ids)
        features = self.network.get_image_features(inputs["pixel_values"]).pooler_output
        places = self.network.get_placeholder_mask(ids, embeddings)
        embeddings = embeddings.masked_scatter(places, features.to(embeddings.dtype))
        return {"input_ids": ids, "inputs_embeds": embeddings, "attention_mask": inputs["attention_mask"]}


class Blip(EncoderDecoder):
    """BLIP (Li et al., 2022): a text decoder attends to the patches; sentences start with [DEC], and end with [SEP]."""

    model_types, task, kind = ("blip",), "describe", "AutoModelForImageTextToText"

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        return self.network.text_decoder

    @property
    def ends(self) -> tuple[int, int]:
        return self.config.text_config.bos_token_id, self.config.text_config.sep_token_id

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Compute the states of the patches."""
        return self.network.vision_model(**inputs)[0], None


class VisionEncoderDecoder(EncoderDecoder):
    """A `VisionEncoderDecoderModel`; where the sizes of its parts differ, a projection joins them."""

    model_types, task, kind = ("vision-encoder-decoder",), "describe", "AutoModelForImageTextToText"

    @property
    def decoder(self) -> Any:  # noqa: ANN401
        return self.network.decoder

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Compute the states of the patches, in the size of the decoder."""
        hidden = self.network.encoder(**inputs)[0]
        projection = getattr(self.network, "enc_to_dec_proj", None)
        return (hidden if projection is None else projection(hidden)), None


class Git(HubNetwork):
    """GIT (Wang et al., 2022): one transformer, whose first tokens are the patches of a vision transformer.

    The memory is the cache of the patches, and the state before the first token as well.
    """

    model_types, task, kind = ("git",), "describe", "AutoModelForImageTextToText"

    def encode(self, inputs: Mapping[str, Tensor]) -> Cache:
        """Compute the keys and values of the patches, which do not attend to the text."""
        first = self._ids[SPECIAL_TOKENS.bos].expand(len(inputs["pixel_values"]), 1)
        cache = tensors_of(self.network(input_ids=first, use_cache=True, **inputs).cache)
        return tuple(tuple(part[:, :, :-1] for part in layer) for layer in cache)

    def start(self, memory: Cache) -> Cache:
        """Return the cache of the patches."""
        return memory

    def decode(self, ids: Tensor, memory: Cache, state: Cache | None) -> tuple[Tensor, Cache]:
        """Run the transformer on tokens of the hub (R, 1), whose positions are counted from the patches on."""
        assert state is not None, "the cache of the patches"
        position = torch.full_like(ids, state[0][0].shape[2] - memory[0][0].shape[2])
        output = self.network(input_ids=ids, position_ids=position, cache=cache_of(state), use_cache=True)
        return output.logits, tensors_of(output.cache)


class TextTranslator(Sequence2Sequence):
    """Marian (Junczys-Dowmunt et al., 2018), M2M-100 (Fan et al., 2021) and NLLB (2022).

    A forced first token names the target language of many-to-many models.
    """

    model_types: ClassVar[tuple[str, ...]] = ("marian", "m2m_100")
    task, kind = "translate", "AutoModelForSeq2SeqLM"

    @property
    def names_language(self) -> bool:
        return bool(self.config.model_type == "m2m_100")

    def encode(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the states of the source tokens."""
        return self.network.get_encoder()(**inputs)[0], inputs["attention_mask"]


class MBart50(TextTranslator):
    """mBART-50 (Tang et al., 2020), whose decoder reads the end of a sentence, then the token of the target language.

    The first mBART (Liu et al., 2020), of the same `model_type`, reads the language in place of the end.
    """

    model_types, names_language = ("mbart",), True

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        """Load a folder; RunError for an mBART that is no mBART-50."""
        super().__init__(folder, device, settings)
        start, end = self.ends
        if start != end:
            raise RunError(f"{folder}: decoder_start_token_id is {start}, expected {end}; choose an mBART-50")
