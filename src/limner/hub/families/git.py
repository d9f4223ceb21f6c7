"""GIT (Wang et al., 2022): one transformer, whose first tokens are the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from limner.hub.networks import Cache, HubNetwork, cache_of, tensors_of
from limner.text.vocab import SPECIAL_TOKENS


class Git(HubNetwork):
    """GIT for captioning; the memory is the cache of the patches, and the state before the first token as well."""

    model_types, task, kind = ("git",), "describe", "AutoModelForImageTextToText"

    def encode(self, inputs: Mapping[str, Tensor]) -> Cache:
        """Compute the keys and values of the patches, which do not attend to the text."""
        first = self._ids[SPECIAL_TOKENS.bos].expand(len(inputs["pixel_values"]), 1)
        cache = tensors_of(self.network(input_ids=first, use_cache=True, **inputs).cache)
        return tuple(tuple(part[:, :, :-1] for part in layer) for layer in cache)

    def start(self, memory: Cache) -> Cache:
        """Return the cache of the patches."""
        return memory

    def decode(self, ids: Tensor, memory: Cache, state: Cache | None) -> Any:  # noqa: ANN401
        """Run the transformer on tokens of the hub (R, 1), whose positions are counted from the patches on."""
        assert state is not None, "the cache of the patches"
        position = torch.full_like(ids, state[0][0].shape[2] - memory[0][0].shape[2])
        return self.network(input_ids=ids, position_ids=position, cache=cache_of(state), use_cache=True)


FAMILY = Git
