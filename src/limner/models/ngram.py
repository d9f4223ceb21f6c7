"""Back-off n-grams with Good-Turing discounting: Katz (1987), the baselines GT2 and GT3 of Kiros et al. (2014)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from limner.data.examples import Batch
from limner.errors import RunError, TrainingError
from limner.models.protocols import ModelInputs, Output
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

NEVER = -1e4
"""Log-probability of <pad> and <s>, which are never said: its exponential is exactly 0, and it is finite, because
scoring multiplies what it finds at padding by a mask of 0, and 0 times -inf is NaN."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class NGramSettings(Settings):
    """Settings of the n-grams."""

    translates: ClassVar[bool] = False

    name: Literal["ngram"] = "ngram"
    order: int = Field(default=3, ge=1, le=9)
    """Words of an n-gram: 2 is GT2, 3 is GT3; the paper found no gain above 3."""
    cutoff: int = Field(default=5, ge=1)
    """Counts up to this are discounted; 1 discounts nothing."""


class NGramMemory(NamedTuple):
    """Nothing is remembered of the picture; this says how many rows there are, and on which device."""

    present: Tensor  # (B,)


class NGramState(NamedTuple):
    """The words before the one that is read next."""

    words: Tensor  # (B, order - 1), the last one last


class Table(NamedTuple):
    """What was seen after the C contexts of one length, N different n-grams.

    A context's number is its place in `contexts`. Its key there is made of its first word and of the number of what
    remains of it without that word (0 where nothing remains): number * V + first word.
    """

    contexts: Tensor  # (C,) keys, ascending
    first: Tensor  # (C + 1,): successors of context c stand at first[c] up to, not with, first[c + 1]
    words: Tensor  # (N,) successors, ascending within a context
    log_probs: Tensor  # (N,) natural logarithm of their probabilities
    log_backoffs: Tensor  # (C,) log alpha: added to what the shorter context says of every other word

    def check(self, order: int, vocab_size: int) -> None:
        """Refuse a table whose parts do not fit one another or the vocabulary: RunError."""
        contexts, first, words, log_probs, log_backoffs = self
        fits = (
            all(values.ndim == 1 for values in self)
            and len(first) == len(contexts) + 1 == len(log_backoffs) + 1
            and int(first[0]) == 0
            and bool((first.diff() >= 0).all())
            and int(first[-1]) == len(words) == len(log_probs)
            and bool(((words >= 0) & (words < vocab_size)).all())
        )
        if not fits:
            shapes = ", ".join(f"{name}_{order} {tuple(values.shape)}" for name, values in self._asdict().items())
            raise RunError(
                f"n-grams: the tables of order {order} do not fit one another and a vocabulary of {vocab_size} words "
                f"({shapes}); restore the model.safetensors of the same training"
            )


class NGram(nn.Module):
    """Katz (1987): words seen after a context have discounted shares of it; the others share what this frees, in the
    proportions they have after the context one word shorter.

    There are no parameters and no gradient: `fit` counts. Before it, all words are equally probable. The picture is
    not looked at. `order` - 1 start signs stand before a sentence, and its end sign counts as a word.

    With n_r the number of different n-grams that were seen r times, r* = (r + 1) n_{r+1} / n_r and K the cutoff, a
    count r <= K is multiplied by

        d_r = (r* / r - (K + 1) n_{K+1} / n_1) / (1 - (K + 1) n_{K+1} / n_1).

    Kiros et al. say no more than "Good-Turing discounting". These rules make every context sum to 1 and give every
    word but <pad> and <s> a probability above 0, where the formulas alone would not: a d_r outside (0, 1], or one
    that cannot be computed because n_1, n_r or the denominator is 0, counts as 1; what unigrams free is spread evenly
    over the words never seen, and where there are none unigrams are not discounted; where no word seen after a
    context is discounted, its total is raised by 1; where a context has seen every word, its probabilities are
    normalised. Discounts are those of one order's own counts, and n-grams seen once are kept.

    What is saved: the unigrams, `log_probs_1` (V,), and for each order n from 2 a `Table`, as `contexts_n`,
    `first_n`, `words_n`, `log_probs_n` and `log_backoffs_n`.
    """

    log_probs_1: Tensor

    Settings: ClassVar = NGramSettings
    uses_image = False

    def __init__(self, settings: NGramSettings, inputs: ModelInputs) -> None:
        """Build a model without counts: all tokens are equally probable.

        Args:
            settings: order and cutoff.
            inputs: size of the vocabulary, V; image features are not used.
        """
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.choices = self.vocab_size - 2  # all but <pad> and <s>
        self.register_buffer("log_probs_1", _log_row(np.full(self.vocab_size, 1 / self.choices)))
        empty, none = torch.zeros(0, dtype=torch.long), torch.zeros(0)
        for order in self._orders:
            self._register(order, Table(empty, torch.zeros(1, dtype=torch.long), empty, none, none))

    @property
    def _orders(self) -> range:
        return range(2, self.settings.order + 1)

    def _register(self, order: int, table: Table) -> None:
        for name, values in table._asdict().items():
            self.register_buffer(f"{name}_{order}", values.clone())

    def _table(self, order: int) -> Table:
        return Table(*(getattr(self, f"{name}_{order}") for name in Table._fields))

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Count n-grams of all orders, and set the tables; what was fitted before is forgotten.

        Args:
            sentences: ids without signs.

        Raises:
            TrainingError: there are no sentences, or an id is no word of the vocabulary.
        """
        like, vocab, cutoff = self.log_probs_1, self.vocab_size, self.settings.cutoff
        stream = self._stream(sentences)
        events = np.flatnonzero(stream != SPECIAL_TOKENS.bos)
        probs = self._unigrams(stream[events])
        self.log_probs_1 = _log_row(probs).to(like)
        grams = np.arange(vocab)
        context = np.zeros_like(events)  # number of each event's context
        for order in self._orders:
            contexts, context = np.unique(context * vocab + stream[events - (order - 1)], return_inverse=True)
            shorter = grams  # what `probs` is of: n-grams as context * V + word
            grams, counts = np.unique(context * vocab + stream[events], return_counts=True)
            owner, words = np.divmod(grams, vocab)
            lower = probs[np.searchsorted(shorter, contexts[owner] // vocab * vocab + words)]
            discounts = good_turing(counts, cutoff)
            probs, backoffs = back_off(owner, counts, lower, discounts, self.choices)
            first = np.searchsorted(owner, np.arange(len(contexts) + 1))
            reals = (torch.from_numpy(np.log(values)).to(like) for values in (probs, backoffs))
            whole = (torch.from_numpy(values).to(like.device) for values in (contexts, first, words))
            self._register(order, Table(*whole, *reals))
            logger.info(
                "order %d: %d contexts, %d n-grams, discounts of the counts 1 to %d: %s",
                *(order, len(contexts), len(grams), cutoff, discounts[1:-1].round(3).tolist()),
            )

    def _stream(self, sentences: Sequence[Sequence[int]]) -> Ints:
        """All sentences in a row, each between its start signs and its end sign."""
        if not sentences:
            raise TrainingError("n-grams: no sentences to count; expected at least one (is the training split empty?)")
        for number, sentence in enumerate(sentences):
            wrong = [word for word in sentence if not SPECIAL_TOKENS.unk <= word < self.vocab_size]
            if wrong:
                raise TrainingError(
                    f"n-grams: sentence {number} holds the id {wrong[0]}: expected ids of words, {SPECIAL_TOKENS.unk} to "
                    f"{self.vocab_size - 1}, without start and end signs; encode it with the model's own vocabulary"
                )
        begin, end = [SPECIAL_TOKENS.bos] * (self.settings.order - 1), [SPECIAL_TOKENS.eos]
        return np.fromiter(chain.from_iterable([*begin, *one, *end] for one in sentences), np.int64)

    def _unigrams(self, words: Ints) -> Floats:
        """Probability of each word, (V,): those never seen back off to all words being equally probable."""
        seen, counts = np.unique(words, return_counts=True)
        cutoff = self.settings.cutoff if len(seen) < self.choices else 1
        owner, lower = np.zeros_like(seen), np.full(len(seen), 1 / self.choices)
        probs, backoffs = back_off(owner, counts, lower, good_turing(counts, cutoff), self.choices)
        row = np.full(self.vocab_size, backoffs[0] / self.choices)
        row[seen] = probs
        return row

    def encode(self, batch: Batch) -> NGramMemory:
        """Look at nothing."""
        return NGramMemory(batch.image.present)

    def start(self, memory: NGramMemory) -> NGramState:
        """Start signs only."""
        present = memory.present
        shape = (len(present), self.settings.order - 1)
        return NGramState(torch.full(shape, SPECIAL_TOKENS.bos, dtype=torch.long, device=present.device))

    def step(self, tokens: Tensor, memory: NGramMemory, state: NGramState) -> tuple[Tensor, NGramState]:
        """Read one word each, (B,); the logits (B, V) are natural log-probabilities."""
        words = torch.cat((state.words, tokens[:, None]), 1)[:, 1:]
        return self._log_probs(words), NGramState(words)

    def forward(self, batch: Batch) -> Output:
        """All positions at once: a window of `order` - 1 words slides over each sentence."""
        before = self.settings.order - 1
        padded = pad(batch.target_in, (before, 0), value=SPECIAL_TOKENS.bos)
        windows = padded.unfold(1, before + 1, 1)[..., 1:]  # (B, T, order - 1)
        return Output(self._log_probs(windows.flatten(0, 1)).view(*batch.target_in.shape, -1))

    def _log_probs(self, words: Tensor) -> Tensor:
        """Log-probability of every word after the given ones: (R, order - 1) to (R, V)."""
        rows = self.log_probs_1.repeat(len(words), 1)
        context = words.new_zeros(len(words))
        seen = torch.ones_like(context, dtype=torch.bool)
        for order in self._orders:
            table = self._table(order)
            if len(table.contexts) == 0:
                break
            keys = context * self.vocab_size + words[:, 1 - order]
            context = torch.searchsorted(table.contexts, keys).clamp(max=len(table.contexts) - 1)
            seen = seen & (table.contexts[context] == keys)
            rows += (table.log_backoffs[context] * seen)[:, None]
            first = table.first[context]
            counts = (table.first[context + 1] - first) * seen
            row = torch.arange(len(words), device=words.device).repeat_interleave(counts)
            # The i-th of all successors of all rows stands `first` of its row on from where its row begins.
            place = torch.arange(len(row), device=words.device) + (first - counts.cumsum(0) + counts)[row]
            rows[row, table.words[place]] = table.log_probs[place]
        return rows

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> object:
        """Take over tables of any size.

        Raises:
            RunError: the unigrams are those of another vocabulary, or the parts of a table do not fit together.
        """
        unigrams = state_dict.get("log_probs_1", self.log_probs_1)
        if unigrams.shape != self.log_probs_1.shape:
            raise RunError(
                f"n-grams: log_probs_1 has {len(unigrams)} words, the vocabulary has {self.vocab_size}; "
                "restore the model.safetensors of the same training"
            )
        for order in self._orders:
            names = [f"{name}_{order}" for name in Table._fields]
            if all(name in state_dict for name in names):  # others are missed below
                Table(*(state_dict[name] for name in names)).check(order, self.vocab_size)
        for name, own in self.named_buffers():
            if name in state_dict:
                setattr(self, name, own.new_empty(state_dict[name].shape))
        return super().load_state_dict(state_dict, strict, assign)


def _log_row(probs: Floats) -> Tensor:
    """Unigram probabilities (V,) as a row of logits, float32; what is said of <pad> and <s> is not looked at."""
    row = torch.from_numpy(np.log(probs)).float()
    row[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]] = NEVER
    return row


def good_turing(counts: Ints, cutoff: int) -> Floats:
    """The discounts d_r of Katz (1987), by count.

    Args:
        counts: how often each different n-gram was seen, (N,).
        cutoff: K; higher counts are not discounted.

    Returns:
        (K + 2,): d_r at place r, and 1 at K + 1 for all higher counts; what cannot be computed is 1 (see `NGram`).
    """
    found = np.ones(cutoff + 2)
    n = np.bincount(np.minimum(counts, cutoff + 2), minlength=cutoff + 2).tolist()
    common = (cutoff + 1) * n[cutoff + 1] / n[1] if n[1] else 1.0
    for r in range(1, cutoff + 1):
        if n[r] and common != 1:
            discount = ((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common)
            found[r] = discount if 0 < discount <= 1 else 1
    return found


def back_off(owner: Ints, counts: Ints, lower: Floats, discounts: Floats, choices: int) -> tuple[Floats, Floats]:
    """Probabilities of N n-grams, and the back-off weights of their C contexts.

    Args:
        owner: number of the context of each n-gram, ascending, (N,).
        counts: how often each was seen, (N,).
        lower: probability of its last word after the context one word shorter, (N,).
        discounts: by count, (K + 2,).
        choices: how many words there are to share the probability.

    Returns:
        (N,), and alpha (C,); 1 where a context has seen every word.
    """
    discount = discounts[np.minimum(counts, len(discounts) - 1)]
    kept = discount * counts
    complete = np.bincount(owner) == choices
    raised = np.bincount(owner, discount < 1) == 0
    probs = kept / np.where(complete, np.bincount(owner, kept), np.bincount(owner, counts) + raised)[owner]
    left, left_lower = (1 - np.bincount(owner, given) for given in (probs, lower))
    return probs, np.divide(left, left_lower, out=np.ones_like(left), where=~complete)
