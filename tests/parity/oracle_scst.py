"""A slow oracle of self-critical sequence training, from Rennie et al. (2017, arXiv 1612.00563), in NumPy float64.

Everything is summed over all sentences, so that an estimate by samples has something to agree with.

A policy is a function `policy(theta, prefix) -> (V,)`, the natural log of p(w_t | w_1 ... w_{t-1}, image) for all
words, where `prefix` are the words so far (the start word is not among them). It may wrap a captioning oracle, or be
`table_policy`. A sentence is a tuple of ids: it ends with the end word, or has `longest` words and is cut there; the
reward of a cut sentence counts too, and the end word is one of the `longest`. Rewards are a table by sentence.

Sections: 3.1 of the paper for REINFORCE and its baseline, 3.2 for the self-critical one. Where it is silent:

- The baseline b does not depend on the sampled sentence; the expected gradient is then the same for any b.
- The gradient at the logits s_t, (r(w) - b) (p(w_t | h_t) - 1_{w_t}), is that of minus the reward, of one sample.
- The loss is summed over the words of a sentence; nothing is divided by its length.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from oracle_recurrent import log_softmax, numerical_gradient

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
Sentence = tuple[int, ...]
Policy = Callable[[Parameters, Sentence], Array]
Rewards = Mapping[Sentence, float]


def table_policy(theta: Parameters, prefix: Sentence) -> Array:
    """A policy without a network: theta has logits (V,) for each prefix, by its words joined with a blank."""
    return log_softmax(theta[" ".join(map(str, prefix))])


def all_sentences(vocab: int, end: int, longest: int) -> list[Sentence]:
    """Those that end within `longest` words, the end word counted, and those that are cut there."""
    finished: list[Sentence] = []
    open_: list[Sentence] = [()]
    for _ in range(longest):
        longer = [(*prefix, word) for prefix in open_ for word in range(vocab)]
        finished += [sentence for sentence in longer if sentence[-1] == end]
        open_ = [sentence for sentence in longer if sentence[-1] != end]
    return finished + open_


def log_prob(policy: Policy, theta: Parameters, sentence: Sentence) -> float:
    """Natural log of p(w), the product over its words; a sentence that is cut has no factor for not ending."""
    return sum(float(policy(theta, sentence[:t])[word]) for t, word in enumerate(sentence))


def greedy_sentence(policy: Policy, theta: Parameters, end: int, longest: int) -> Sentence:
    """w^: the most probable word each time (of equals, the lowest id), the model's own test-time inference."""
    sentence: Sentence = ()
    while len(sentence) < longest and (not sentence or sentence[-1] != end):
        sentence = (*sentence, int(np.argmax(policy(theta, sentence))))
    return sentence


def expected_reward(policy: Policy, theta: Parameters, rewards: Rewards) -> float:
    """E[r(w)], w of p_theta: the sum over all sentences, which are the keys of `rewards`."""
    return sum(math.exp(log_prob(policy, theta, sentence)) * reward for sentence, reward in rewards.items())


def loss_gradient(policy: Policy, theta: Parameters, rewards: Rewards) -> dict[str, Array]:
    """The gradient of L = -E[r(w)], by numerical differentiation."""
    return numerical_gradient(lambda moved: -expected_reward(policy, moved, rewards), theta)


def logit_gradients(policy: Policy, theta: Parameters, sample: Sentence, reward: float, baseline: float) -> Array:
    """dL / d s_t of one sample: (r(w^s) - b) (p(w_t | h_t) - 1_{w_t^s}) for each of its words, (T, V)."""
    rows = []
    for t, word in enumerate(sample):
        p = np.exp(policy(theta, sample[:t]))
        rows.append((reward - baseline) * (p - np.eye(len(p))[word]))
    return np.array(rows)


def expected_logit_gradients(
    policy: Policy, theta: Parameters, rewards: Rewards, baseline: float = 0.0
) -> dict[Sentence, Array]:
    """dL / d s of the logits after each prefix: `logit_gradients` of all sentences, each by its probability."""
    total: dict[Sentence, Array] = {}
    for sentence, reward in rewards.items():
        p = math.exp(log_prob(policy, theta, sentence))
        for t, row in enumerate(logit_gradients(policy, theta, sentence, reward, baseline)):
            total[sentence[:t]] = total.get(sentence[:t], np.zeros_like(row)) + p * row
    return total
