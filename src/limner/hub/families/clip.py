"""Joint spaces of images and sentences: CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from limner.hub.networks import HubModel


class JointSpace(HubModel):
    """Two towers, whose score is exp(s) cos + b; SigLIP pads every sentence to the length of its training."""

    model_types, task, kind = ("clip", "siglip"), "match", "AutoModel"

    def sentence_vectors(self, tokenizer: Any, sentences: list[str]) -> Tensor:  # noqa: ANN401
        """Compute the vectors of sentences, (N, J)."""
        length = self.config.text_config.max_position_embeddings
        is_siglip = self.config.model_type == "siglip"
        batch = tokenizer(
            sentences,
            padding="max_length" if is_siglip else True,
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        mask = None if is_siglip else batch["attention_mask"].to(self.device)
        output = self.network.get_text_features(batch["input_ids"].to(self.device), attention_mask=mask)
        return vectors(output)

    def image_vectors(self, pixels: Tensor) -> Tensor:
        """Compute the vectors of images (N, 3, H, W), (N, J)."""
        return vectors(self.network.get_image_features(pixels.to(self.device)))

    @property
    def scale(self) -> tuple[float, float]:
        """Factor of the cosine, and what is added to it."""
        bias = getattr(self.network, "logit_bias", None)
        return self.network.logit_scale.exp().item(), 0.0 if bias is None else bias.item()


def vectors(output: Any) -> Tensor:  # noqa: ANN401
    """Return the projected vectors, (N, J), in the output of a tower."""
    result: Tensor = output.pooler_output
    return result


FAMILY = JointSpace
