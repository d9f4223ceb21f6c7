"""GIT (Wang et al., 2022): one transformer, whose first tokens are the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limner.hub.networks import Cache, HubNetwork, Step, cache_of, tensors_of


class Git(HubNetwork):
    """GIT for captioning; the memory is the cache of the patches, and the state before the first token as well."""

    model_types, task, kind, uses_image = ("git",), "describe", "AutoModelForImageTextToText", True

    def encode(self, inputs: Mapping[str, Tensor]) -> Cache:
        """Compute the keys and values of the patches, which do not attend to the text."""
        pixels = inputs["pixel_values"]
        first = torch.full((len(pixels), 1), self.start_token_id, device=self.device)
        cache = tensors_of(self.network(input_ids=first, pixel_values=pixels, use_cache=True).cache)
        return tuple(tuple(part[:, :, :-1] for part in layer) for layer in cache)

    def start(self, memory: Cache) -> Cache:
        """Return the cache of the patches."""
        return memory

    def decode(self, ids: Tensor, memory: Cache, state: Cache | None) -> Step:
        """Compute the logits after tokens of the hub (R, 1)."""
        assert state is not None, "the cache of the patches"
        position = torch.full_like(ids, state[0][0].shape[2] - memory[0][0].shape[2])
        output = self.network(input_ids=ids, position_ids=position, cache=cache_of(state), use_cache=True)
        return Step(output.logits, output.cache)


FAMILY = Git
