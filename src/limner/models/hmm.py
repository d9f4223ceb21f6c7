"""Discrete hidden Markov model over words: Rabiner (1989), trained by the algorithm of Baum et al. (1970).

Shapes: B batch or hypotheses, N sentences of one length, T their length with the end-of-sentence token, K hidden
states, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from limner.bounds import EpochsOrNone, Few, Seed, Weight, Width
from limner.data.examples import Batch
from limner.models.protocols import ConditionalLMSettings, ModelInputs, Output, require_words
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

SENTENCES_PER_CHUNK = 1024
"""Maximum number of sentences that an expectation step holds at a time, which bounds its memory."""


class HMMSettings(ConditionalLMSettings):
    """Settings of the hidden Markov model."""

    has_gradients: ClassVar = False
    maximises_likelihood: ClassVar = False
    name: Literal["hmm"] = "hmm"
    states: Width = 100
    """Number K of hidden states."""
    pseudo_count: Weight = 0.01
    """Count added to every expected initial state, transition and emission: the parameter of a symmetric Dirichlet
    prior, minus 1. With 0 the likelihood itself is maximised, and unseen emissions have probability 0."""
    iterations: EpochsOrNone = 100
    """Maximum number of iterations of expectation maximisation."""
    tolerance: Weight = 1e-4
    """Gain of the objective, in nats per training token, below which the iterations end."""
    restarts: Few = 1
    """Number of random initialisations; the estimate with the highest objective is kept."""
    seed: Seed = 1
    """Random seed of the first initialisation."""


class HMMParameters(NamedTuple):
    """Probabilities of a hidden Markov model."""

    initial: Tensor  # (K,): P(h_1)
    transition: Tensor  # (K, K): P(h_t | h_{t-1}), previous state first
    emission: Tensor  # (K, V): P(x_t | h_t)


class HMM(nn.Module):
    """Hidden Markov model whose emissions are the words of a sentence and its end-of-sentence token.

    With the hidden states h_t and the tokens x_1 … x_T, where x_T = </s>:

        P(x, h) = P(h_1) prod_{t=2}^T P(h_t | h_{t-1}) prod_{t=1}^T P(x_t | h_t)                              (1)
        b_1(k) = P(h_1 = k)                                                                                    (2)
        P(x_t = v | x_1 … x_{t-1}) = sum_k b_t(k) P(v | k)                                                     (3)
        b_{t+1}(j) = sum_k b_t(k) P(x_t | k) P(j | k) / P(x_t | x_1 … x_{t-1})                                 (4)

    The belief b_t is the state of the protocol, so that the model generates, scores and is searched as every other
    model. It has no gradients: `fit` estimates it by `baum_welch`. Before that, all words are equally probable. The
    image is not used. The tokens <pad> and <s> are never emitted.
    """

    initial: Tensor
    transition: Tensor
    emission: Tensor

    Settings: ClassVar = HMMSettings
    uses_image = False

    def __init__(self, settings: HMMSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        states = settings.states
        self._set(
            HMMParameters(
                torch.full((states,), 1 / states),
                torch.full((states, states), 1 / states),
                (_emitted(inputs.vocab_size).float() / (inputs.vocab_size - 2)).repeat(states, 1),
            )
        )

    def _set(self, parameters: HMMParameters) -> None:
        """Set the buffers."""
        for name, values in parameters._asdict().items():
            self.register_buffer(name, values)

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Estimate the probabilities by expectation maximisation, anew; TrainingError for no sentences or wrong ids."""
        best: Iteration | None = None
        for restart in range(self.settings.restarts):
            for last in baum_welch(sentences, self.vocab_size, self.settings, self.settings.seed + restart):
                logger.info(
                    "initialisation %d, iteration %d: log-likelihood %.4f per token",
                    *(restart + 1, last.number, last.log_likelihood / last.tokens),
                )
            if best is None or last.objective > best.objective:
                best = last
        assert best is not None, "at least one initialisation"
        self._set(HMMParameters(*(values.to(self.emission) for values in best.parameters)))

    def encode(self, batch: Batch) -> Tensor:
        """Return a tensor (B,) for the number and the device of the examples; the image is not used."""
        return batch.image.present

    def start(self, memory: Tensor) -> Tensor:
        """Return the initial belief (eq. 2), (B, K)."""
        return self.initial.expand(len(memory), -1)

    def step(self, tokens: Tensor, memory: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities (B, V) after one more token (B,) of each hypothesis, and the belief."""
        belief = self._update(state, tokens)
        return self._log_probs(belief), belief

    def forward(self, batch: Batch) -> Output:
        """Compute the log-probabilities (B, T, V) of all positions; only eq. 4 runs in a loop over time."""
        belief, beliefs = self.start(self.encode(batch)), []
        for tokens in batch.target_in.unbind(1):
            belief = self._update(belief, tokens)
            beliefs.append(belief)
        return Output(self._log_probs(torch.stack(beliefs, 1)))

    def _update(self, belief: Tensor, tokens: Tensor) -> Tensor:
        """Compute the belief after one more token (eq. 4).

        The belief does not change after <s>, which is not emitted, and after an impossible token only by a transition.
        """
        joint = belief * self.emission.t()[tokens]  # (B, K)
        total = joint.sum(1, keepdim=True)
        posterior = torch.where(total > 0, joint / total.clamp(min=torch.finfo(total.dtype).tiny), belief)
        return torch.where(tokens[:, None] == SPECIAL_TOKENS.bos, belief, posterior @ self.transition)

    def _log_probs(self, belief: Tensor) -> Tensor:
        """Compute the log-probability of every token from beliefs (…, K) (eq. 3), finite for impossible tokens."""
        probs = belief @ self.emission
        return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()

    def states(self, sentence: Sequence[int]) -> list[int]:
        """Find the most probable hidden states of a sentence and of </s> by the algorithm of Viterbi (1967)."""
        tokens = torch.tensor([*sentence, SPECIAL_TOKENS.eos], device=self.emission.device)
        emitted, transition = self.emission.t()[tokens].log(), self.transition.log()  # (T, K), (K, K)
        score = self.initial.log() + emitted[0]
        parents: list[Tensor] = []
        for at_t in emitted[1:]:
            score, parent = (score[:, None] + transition).max(0)
            score = score + at_t
            parents.append(parent)
        path = [int(score.argmax())]
        for parent in reversed(parents):
            path.append(int(parent[path[-1]]))
        return path[::-1]


class Iteration(NamedTuple):
    """Result of one iteration of expectation maximisation."""

    number: int
    """Number of maximisation steps before these parameters."""
    parameters: HMMParameters
    log_likelihood: float
    """Natural log-likelihood of the training sentences."""
    objective: float
    """Log-likelihood plus the logarithm of the Dirichlet prior, up to a constant; never decreases."""
    tokens: int
    """Number of training tokens, end-of-sentence tokens included."""


def baum_welch(
    sentences: Sequence[Sequence[int]], vocab_size: int, settings: HMMSettings, seed: int
) -> Iterator[Iteration]:
    """Estimate a hidden Markov model by expectation maximisation (Rabiner, 1989, eqs. 18-54).

    Computed in float64 with the forward and backward variables scaled at every position (Rabiner's section V.A), which
    is faster than log space, since all sums over states are matrix products. Sentences of one length are processed
    together, so that nothing is padded.

    Yields:
        The random initialisation and the estimate after each iteration.

    Raises:
        TrainingError: there are no sentences, or an id is not a word of the vocabulary.
    """
    groups = _by_length(sentences, vocab_size)
    tokens = sum(group.numel() for group in groups)
    parameters = _initialise(groups, vocab_size, settings, seed)
    before = -torch.inf
    for number in range(settings.iterations + 1):
        expected, log_likelihood = _expected_counts(groups, parameters)
        objective = log_likelihood + _log_prior(parameters, settings.pseudo_count)
        yield Iteration(number, parameters, log_likelihood, objective, tokens)
        if objective - before < settings.tolerance * tokens:
            return
        before = objective
        parameters = _maximise(expected, settings.pseudo_count)


def _emitted(vocab_size: int) -> Tensor:
    """Mask of the tokens that can be emitted, (V,): all except <pad> and <s>."""
    mask = torch.ones(vocab_size, dtype=torch.bool)
    mask[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]] = False
    return mask


def _by_length(sentences: Sequence[Sequence[int]], vocab_size: int) -> list[Tensor]:
    """Group sentences by length, each with </s>: tensors (T, N) of at most `SENTENCES_PER_CHUNK` sentences."""
    require_words(sentences, vocab_size, "hmm")
    groups: dict[int, list[list[int]]] = defaultdict(list)
    for sentence in sentences:
        groups[len(sentence)].append([*sentence, SPECIAL_TOKENS.eos])
    return [
        chunk.t().contiguous()
        for _, group in sorted(groups.items())
        for chunk in torch.split(torch.tensor(group), SENTENCES_PER_CHUNK)
    ]


def _initialise(groups: Sequence[Tensor], vocab_size: int, settings: HMMSettings, seed: int) -> HMMParameters:
    """Draw initial states and transitions uniformly from all distributions, and emissions around the unigrams."""
    generator = torch.Generator().manual_seed(seed)
    states = settings.states

    def draw(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float64).exponential_(generator=generator)

    unigrams = torch.stack([group.flatten().bincount(minlength=vocab_size) for group in groups]).sum(0)
    unigrams = unigrams + settings.pseudo_count * _emitted(vocab_size)
    drawn = draw(states), draw(states, states), unigrams * draw(states, vocab_size)
    return HMMParameters(*map(_normalise, drawn))


def _normalise(counts: Tensor) -> Tensor:
    """Normalise counts (…, n) to distributions; counts of zero only give the uniform distribution."""
    totals = counts.sum(-1, keepdim=True)
    return torch.where(totals > 0, counts / totals, 1 / counts.shape[-1])


def _expected_counts(groups: Sequence[Tensor], parameters: HMMParameters) -> tuple[HMMParameters, float]:
    """Compute the expected counts of all events given tokens (T, N), and the log-likelihood (expectation step)."""
    initial, transition, emission = parameters
    by_word = emission.t().contiguous()  # (V, K)
    counts = HMMParameters(*(torch.zeros_like(values) for values in (initial, transition, by_word)))
    log_likelihood = 0.0
    for tokens in groups:
        emitted = by_word[tokens]  # (T, N, K)
        forward, scale = _forward(parameters, emitted)
        weighted = emitted.div_(scale[..., None])  # P(x_t | h_t) / c_t
        backward = torch.ones_like(forward)
        for t in range(len(tokens) - 1, 0, -1):
            weighted[t] *= backward[t]
            torch.mm(weighted[t], transition.t(), out=backward[t - 1])
        counts.transition.addmm_(forward[:-1].flatten(0, 1).t(), weighted[1:].flatten(0, 1))
        posterior = forward.mul_(backward)  # P(h_t | x)
        counts.initial.add_(posterior[0].sum(0))
        counts.emission.index_add_(0, tokens.flatten(), posterior.flatten(0, 1))
        log_likelihood += float(scale.log().sum())
    return HMMParameters(counts.initial, counts.transition * transition, counts.emission.t()), log_likelihood


def _forward(parameters: HMMParameters, emitted: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the scaled forward variables P(h_t | x_1 … x_t) from P(x_t | h_t), (T, N, K), and their scales."""
    forward, scale = torch.empty_like(emitted), emitted.new_empty(emitted.shape[:2])
    torch.mul(parameters.initial, emitted[0], out=forward[0])
    for t, at_t in enumerate(emitted):
        if t:
            torch.mm(forward[t - 1], parameters.transition, out=forward[t]).mul_(at_t)
        torch.sum(forward[t], 1, out=scale[t])
        forward[t] /= scale[t, :, None]
    return forward, scale


def _maximise(expected: HMMParameters, pseudo_count: float) -> HMMParameters:
    """Estimate the probabilities from expected counts plus pseudo-counts (maximisation step)."""
    initial, transition, emission = expected
    emission = emission + pseudo_count * _emitted(emission.shape[1])
    return HMMParameters(*(_normalise(x) for x in (initial + pseudo_count, transition + pseudo_count, emission)))


def _log_prior(parameters: HMMParameters, pseudo_count: float) -> float:
    """Compute the logarithm of the Dirichlet prior, up to a constant."""
    if not pseudo_count:
        return 0.0
    emission = parameters.emission[:, _emitted(parameters.emission.shape[1])]
    return pseudo_count * sum(float(x.log().sum()) for x in (parameters.initial, parameters.transition, emission))
