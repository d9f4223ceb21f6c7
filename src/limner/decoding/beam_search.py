"""Search for the most probable sentences: one step of the models, rules, choose, rank.

Greedy search is a beam of 1, sampling is another way to choose. The search knows a model by `encode`, `start`
and `step` only; it leaves it to the caller to put models into evaluation mode.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from limner.data.examples import Batch
from limner.errors import RunError, SettingsError
from limner.models.protocols import ConditionalLM, Memory, State, precise
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

SECTION = 64
"""Log-probabilities whose greatest is looked for first."""


class SampleSettings(Settings):
    """Draw words at random in place of taking the most probable ones."""

    temperature: PositiveFloat = 1.0
    """Log-probabilities are divided by it: below 1 bolder words become rarer, above 1 more frequent."""
    top_k: PositiveInt | None = None
    """Draw among this many most probable words."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw among the most probable words that together reach this probability (Holtzman et al., 2020)."""
    seed: NonNegativeInt = 0
    """With an example's id, it decides the draws: neighbours in the batch do not."""


class DecodingSettings(Settings):
    """How sentences are found; a hypothesis' score is log_prob / length ** length_penalty.

    Its length counts the words and the end sign, that is, the factors of its probability.
    """

    beam_size: PositiveInt = 1
    """Hypotheses kept at every step (1: greedy), or sentences drawn for an example when sampling."""
    n_best: PositiveInt = 1
    """Hypotheses returned for an example, best first; at most `beam_size`."""
    length_penalty: NonNegativeFloat = 0.0
    """0 ranks by log-probability, 1 by its mean over the words; more favours longer sentences."""
    min_length: NonNegativeInt = 0
    """Words before a sentence may end."""
    max_length: PositiveInt = 50
    """Words at which a sentence is cut off, given first words included."""
    ban_unknown: bool = False
    """Whether <unk> is never chosen (given first words may hold it)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the products: bf16 is faster, and may now and then choose another word."""
    sample: SampleSettings | None = None
    """Draw at random; null searches for the most probable."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} is above beam_size {self.beam_size}: raise beam_size")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self

    @property
    def signature(self) -> str:
        """Beam and penalty, and whatever else is not as usual: what a score and a file are told apart by."""
        parts = [f"beam{self.beam_size}", f"penalty{self.length_penalty:g}"]
        others = self.model_dump(exclude_defaults=True, exclude={"beam_size", "length_penalty", "sample"})
        parts += [key if value is True else f"{key}{value}" for key, value in others.items()]
        if self.sample is not None:
            drawn = self.sample.model_dump(exclude_none=True)
            parts += ["sample", *(f"{key}{value:g}" for key, value in drawn.items())]
        return ",".join(parts)


class Hypothesis(NamedTuple):
    """A sentence that was found."""

    tokens: tuple[int, ...]
    """Ids without signs; given first words are the first of them."""
    log_prob: float
    """Natural logarithm of its probability under the model, given first words and end sign included."""
    score: float
    """What it was ranked by."""
    ended: bool
    """False where it was cut off at `max_length`."""


class Choice(NamedTuple):
    """What one step leads to for N examples; K of each go on, a log-probability of -inf says it does not."""

    token: Tensor  # (N, K): next word of those that go on
    total: Tensor  # (N, K): log-probability of those that go on
    parent: Tensor | None  # (N, K): which of the example's hypotheses goes on; None: each its own way
    ends: Tensor  # (N, K) bool: where a hypothesis ends here
    end_total: Tensor  # (N, K): log-probability of those that end
    end_parent: Tensor | None  # (N, K): which of the example's hypotheses ends; None: each its own way


Choose = Callable[[Tensor, Tensor, list[int], int], Choice]
"""Takes log_probs (N, K, V), which it may change, totals (N, K), which examples of the batch these are, and the length
so far. At the first step K may be 1 in place of the beam's size."""


@torch.no_grad()  # in inference mode autocast would round the weights anew at every step
def beam_search(
    models: Sequence[ConditionalLM],
    batch: Batch,
    settings: DecodingSettings,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Find the `n_best` sentences of every example.

    A beam as in Bahdanau et al. (2015) and whisper: of the 2K best continuations of an example those that end
    within the first K are found, the K best others go on. An example is done when K are found, or when
    nothing that goes on can still enter its `n_best`; then its rows leave the batch.

    Args:
        models: one model, or several of one vocabulary whose probabilities are averaged.
        batch: pictures and source sentences; its targets are not looked at.
        settings: how to search.
        prefixes: ids of the given first words of each example, without signs; their lengths may differ.

    Returns:
        For each example its hypotheses, best first; fewer than `n_best` only where no more were found.

    Raises:
        SettingsError: the given first words do not fit the batch, the vocabulary or `max_length`.
        RunError: the models have different vocabularies.
    """
    if len(batch) == 0:
        return []
    with torch.autocast(batch.target_in.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        return _search(models, batch, settings, prefixes)


def _search(
    models: Sequence[ConditionalLM],
    batch: Batch,
    settings: DecodingSettings,
    prefixes: Sequence[Sequence[int]] | None,
) -> list[list[Hypothesis]]:
    sizes = sorted({model.vocab_size for model in models})
    if len(sizes) != 1:
        raise RunError(f"models of {sizes} words: expected one model or more of one vocabulary")
    given = _given_words(prefixes, batch, settings.max_length, sizes[0])
    rules = _Rules(settings, given)
    choose: Choose = _Best(settings) if settings.sample is None else _Sampler(settings.sample, settings, batch)
    found = _Found(len(batch), settings)
    live = list(range(len(batch)))  # the N examples still searched
    shared = int((given != SPECIAL_TOKENS.pad).sum(1).min())  # so many words are given to all: nothing to choose yet
    memories = [model.encode(batch) for model in models]
    token, total, states = _read(models, given[:, :shared], memories)
    # All K are the same before the first choice: one stands for them, where it has continuations enough.
    width = 1 if settings.sample is None and 2 * settings.beam_size <= sizes[0] else settings.beam_size
    rows = torch.arange(len(batch), device=total.device).repeat_interleave(width)  # (N * K,)
    states, token, total = select([states, token, total], rows)  # the memories are not: models share them
    token, total = token.view(len(batch), -1), total.view(len(batch), -1)  # (N, K)
    if settings.sample is None:
        total[:, 1:] = -math.inf
    words = token.new_zeros((*token.shape, settings.max_length))  # (N, K, max_length)
    words[:, :, :shared] = given[:, None, :shared]
    for length in range(shared, settings.max_length):
        log_probs, states = _predict(models, token.flatten(), memories, states)  # (N * K, V)
        log_probs = rules.apply(log_probs.view(*total.shape, -1), live, length)  # (N, K, V)
        choice = choose(log_probs, total, live, length)
        keep = found.add(choice, total, words, live, length)
        if not keep:
            break
        if choice.parent is not None or len(keep) < len(live):
            rows = _rows(choice, keep, total.shape[1])
            states = select(states, rows)
            words = words.flatten(0, 1)[rows].view(len(keep), -1, settings.max_length)
        token, total = choice.token, choice.total
        if len(keep) < len(live):
            live = [live[n] for n in keep]
            memories = select(memories, torch.tensor(keep, device=rows.device))
            token, total = token[keep], total[keep]
        words[:, :, length] = token
    else:
        found.cut_off(total, words, live)
    return found.ranked()


def _read(models: Sequence[ConditionalLM], given: Tensor, memories: list[Memory]) -> tuple[Tensor, Tensor, list[State]]:
    """Read the first words that are given to all, (B, P), once for all hypotheses of an example.

    Returns:
        The last word, which no model has read yet, (B,), the log-probability of all, (B,), and the models' states.
    """
    states = [model.start(memory) for model, memory in zip(models, memories, strict=True)]
    token = given.new_full((len(given),), SPECIAL_TOKENS.bos)
    total = torch.zeros(len(given), device=given.device)
    for word in given.unbind(1):
        log_probs, states = _predict(models, token, memories, states)
        total = total + log_probs.gather(1, word[:, None]).squeeze(1)
        token = word
    return token, total, states


def _predict(
    models: Sequence[ConditionalLM], tokens: Tensor, memories: list[Memory], states: list[State]
) -> tuple[Tensor, list[State]]:
    """One step of all models: the log of their mean probabilities (B, V), and their next states."""
    log_probs, after = [], []
    for model, memory, state in zip(models, memories, states, strict=True):
        logits, next_state = model.step(tokens, memory, state)
        log_probs.append(precise(logits).log_softmax(dim=-1))
        after.append(next_state)
    if len(models) == 1:
        return log_probs[0], after
    return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(models)), after


def _rows(choice: Choice, keep: list[int], width: int) -> Tensor:
    """Rows (N' * K,) of the step before, which had `width` for an example, that the examples to keep go on from."""
    kept = torch.tensor(keep, device=choice.token.device)
    parent = torch.arange(width, device=kept.device) if choice.parent is None else choice.parent[kept]
    return (kept[:, None] * width + parent).flatten()


def select(tree: Any, rows: Tensor) -> Any:  # noqa: ANN401
    """The given rows of a memory or state: of every tensor in nested tuples and lists."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    assert isinstance(tree, tuple | list), f"a memory or state holds a {type(tree).__name__}"
    parts = [select(part, rows) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


class _Best:
    """Takes the most probable continuations of each example."""

    def __init__(self, settings: DecodingSettings) -> None:
        self.beam_size = settings.beam_size

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        if self.beam_size == 1:
            best, token = log_probs.max(dim=-1)
            return _each_its_own(token, total + best)
        vocab_size = log_probs.shape[2]
        joint = log_probs.add_(total[:, :, None]).flatten(1)  # (N, K * V); a new tensor takes longer than the sum
        best, index = _greatest(joint, 2 * self.beam_size)  # (N, 2K)
        parent, token = index // vocab_size, index % vocab_size
        ends = token == SPECIAL_TOKENS.eos
        total, order = best.masked_fill(ends, -math.inf).topk(self.beam_size)
        return Choice(
            token=token.gather(1, order),
            total=total,
            parent=parent.gather(1, order),
            ends=ends[:, : self.beam_size],
            end_total=best[:, : self.beam_size],
            end_parent=parent[:, : self.beam_size],
        )


def _greatest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk` of long rows (N, M) in a third of its time: the greatest are in the sections with the greatest heads."""
    length = values.shape[1]
    whole = length - length % SECTION
    if whole // SECTION <= count:
        best, index = values.topk(count)
        return best, index
    heads = values[:, :whole].reshape(len(values), -1, SECTION).amax(2)
    within = torch.arange(SECTION, device=values.device)
    places = (heads.topk(count).indices[:, :, None] * SECTION + within).flatten(1)
    rest = torch.arange(whole, length, device=values.device).expand(len(values), -1)
    places = torch.cat([places, rest], 1)
    best, index = values.gather(1, places).topk(count)
    return best, places.gather(1, index)


def _each_its_own(token: Tensor, total: Tensor) -> Choice:
    ends = token == SPECIAL_TOKENS.eos
    return Choice(token, total.masked_fill(ends, -math.inf), None, ends, total, None)


class _Sampler:
    """Draws every continuation; the numbers behind the draws are fixed by the seed and the example's id."""

    def __init__(self, sample: SampleSettings, settings: DecodingSettings, batch: Batch) -> None:
        shape = (settings.max_length, settings.beam_size)
        draws = [np.random.default_rng([sample.seed, *id_.encode()]).random(shape) for id_ in batch.ids]
        self.draws = torch.from_numpy(np.stack(draws)).to(batch.target_in.device)  # (B, max_length, K)
        self.sample = sample

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        values, words = self._restrict(log_probs)
        above = values - values.amax(dim=-1, keepdim=True)
        if self.sample.temperature != 1:
            above /= self.sample.temperature
        reached = above.exp_().cumsum(dim=-1)  # (N, K, V)
        last = reached[..., -1:]
        drawn = self.draws[live, length][:, :, None].to(last.dtype) * last
        drawn = drawn.minimum(last * (1 - torch.finfo(last.dtype).eps))  # a draw of almost 1 may be rounded to 1
        token = torch.searchsorted(reached, drawn, right=True).clamp(max=reached.shape[-1] - 1)
        token = token if words is None else words.gather(-1, token)
        return _each_its_own(token.squeeze(-1), total + log_probs.gather(-1, token).squeeze(-1))

    def _restrict(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values of the words to draw among, and which words they are (None: all, in their order)."""
        if self.sample.top_k is None and self.sample.top_p is None:
            return values, None
        values, words = values.topk(min(self.sample.top_k or values.shape[-1], values.shape[-1]))
        if self.sample.top_p is not None:
            probs = (values / self.sample.temperature).softmax(dim=-1)
            values = values.masked_fill(probs.cumsum(dim=-1) - probs >= self.sample.top_p, -math.inf)
        return values, words


class _Rules:
    """What may come next: first the given words, no end before `min_length`, never a sign that is no word."""

    def __init__(self, settings: DecodingSettings, given: Tensor) -> None:
        banned = [SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, *([SPECIAL_TOKENS.unk] if settings.ban_unknown else [])]
        self.banned = torch.tensor(banned, device=given.device)
        self.banned_early = torch.tensor([*banned, SPECIAL_TOKENS.eos], device=given.device)
        self.min_length = settings.min_length
        self.given = given

    def apply(self, log_probs: Tensor, live: list[int], length: int) -> Tensor:
        """Set what may not come to -inf in log_probs (N, K, V), in place; the others keep the model's value."""
        banned = self.banned_early if length < self.min_length else self.banned
        if length >= self.given.shape[1]:
            return log_probs.index_fill_(-1, banned, -math.inf)
        word = self.given[live, length][:, None, None].expand(-1, log_probs.shape[1], 1)  # (N, K, 1)
        only = torch.full_like(log_probs, -math.inf).scatter(-1, word, log_probs.gather(-1, word))
        return torch.where(word == SPECIAL_TOKENS.pad, log_probs.index_fill_(-1, banned, -math.inf), only)


def _given_words(prefixes: Sequence[Sequence[int]] | None, batch: Batch, max_length: int, vocab_size: int) -> Tensor:
    """Check the given first words and pad them, (B, P)."""
    prefixes = [()] * len(batch) if prefixes is None else prefixes
    if len(prefixes) != len(batch):
        raise SettingsError(f"given first words: {len(prefixes)} lists for {len(batch)} examples")
    for id_, prefix in zip(batch.ids, prefixes, strict=True):
        if len(prefix) > max_length or not all(SPECIAL_TOKENS.unk <= word < vocab_size for word in prefix):
            expected = f"at most {max_length} (max_length) ids of words, {SPECIAL_TOKENS.unk} to {vocab_size - 1}"
            raise SettingsError(f"example '{id_}': given first words {list(prefix)}: expected {expected}")
    longest = max(len(prefix) for prefix in prefixes)
    padded = [[*prefix, *[SPECIAL_TOKENS.pad] * (longest - len(prefix))] for prefix in prefixes]
    return torch.tensor(padded, device=batch.target_in.device, dtype=torch.long).view(len(batch), longest)


class _Found:
    """The hypotheses found so far, and whether an example needs more."""

    def __init__(self, count: int, settings: DecodingSettings) -> None:
        self.settings = settings
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.longest = settings.max_length**settings.length_penalty

    def add(self, choice: Choice, before: Tensor, words: Tensor, live: list[int], length: int) -> list[int]:
        """Take in what ends at this step; return which of the live examples go on, as places in `live`."""
        ends = choice.ends.nonzero()
        if len(ends):
            n, k = ends.T
            row = k if choice.end_parent is None else choice.end_parent[n, k]
            examples = [live[place] for place in n.tolist()]
            self._take(examples, choice.end_total[n, k], words[n, row, :length], ended=True)
        best = choice.total.amax(dim=1).tolist()
        # Where a model gives every next word the probability zero, what there is stands as cut off.
        stuck = [n for n, example in enumerate(live) if best[n] == -math.inf and not self.hypotheses[example]]
        if stuck:
            k = before[stuck].argmax(dim=1)
            examples = [live[n] for n in stuck]
            self._take(examples, before[stuck, k], words[stuck, k, :length], ended=False)
        return [n for n, example in enumerate(live) if not self._done(example, best[n])]

    def cut_off(self, total: Tensor, words: Tensor, live: list[int]) -> None:
        """Take in what has not ended at `max_length`."""
        for k in range(total.shape[1]):
            self._take(live, total[:, k], words[:, k], ended=False)

    def ranked(self) -> list[list[Hypothesis]]:
        return [hypotheses[: self.settings.n_best] for hypotheses in self.hypotheses]

    def _take(self, examples: list[int], log_probs: Tensor, words: Tensor, ended: bool) -> None:
        for example, log_prob, tokens in zip(examples, log_probs.tolist(), words.tolist(), strict=True):
            if log_prob > -math.inf:
                score = log_prob / max(1, len(tokens) + ended) ** self.settings.length_penalty
                hypothesis = Hypothesis(tuple(tokens), log_prob, score, ended)
                bisect.insort(self.hypotheses[example], hypothesis, key=lambda known: -known.score)

    def _done(self, example: int, best: float) -> bool:
        hypotheses, needed = self.hypotheses[example], self.settings.n_best
        if best == -math.inf or len(hypotheses) >= self.settings.beam_size:
            return True
        # Log-probabilities only fall: what goes on scores at most its present one over the greatest length.
        return len(hypotheses) >= needed and best / self.longest <= hypotheses[needed - 1].score
