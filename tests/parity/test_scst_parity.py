"""Self-critical training of a model that is a table of logits, against the enumeration of all its sentences."""

from types import SimpleNamespace

import numpy as np
import oracle_scst as oracle
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from limner.data.examples import Example, collate
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.models.protocols import Output
from limner.runs.training_settings import SelfCriticalSettings
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.scst import SelfCritical, policy_loss, sampled_batch

LONGEST, WORDS, VOCAB = 3, (SPECIAL_TOKENS.eos, 4, 5), 6
"""Words 0 (the end), 1 and 2 of the oracle are the tokens `WORDS` of the model."""


class Table(nn.Module):
    """Logits of the next token after each prefix, as a model; prefixes are numbered like the nodes of a heap."""

    vocab_size = VOCAB

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.logits = nn.Parameter(torch.randn(2**LONGEST - 1, VOCAB, dtype=torch.float64))

    def encode(self, batch):
        return (batch.target_in[:, :1],)

    def start(self, memory):
        return (torch.zeros(len(memory[0]), dtype=torch.long),)

    def step(self, tokens, memory, state):
        node = state[0].repeat_interleave(len(tokens) // len(state[0]), 0)
        node = self.after(node, tokens)
        return self.logits[node], (node,)

    def after(self, node, tokens):
        longer = 2 * node + 1 + (tokens == WORDS[2]).long()
        return torch.where(tokens > SPECIAL_TOKENS.unk, longer, node).clamp(max=len(self.logits) - 1)

    def forward(self, batch):
        node = torch.zeros(len(batch), dtype=torch.long)
        logits = []
        for tokens in batch.target_in.unbind(1):
            node = self.after(node, tokens)
            logits.append(self.logits[node])
        return Output(torch.stack(logits, 1))

    @property
    def theta(self):
        """Logits of the oracle's words by prefix, and the prefix of each row."""
        prefixes = {0: ()}
        for node in range(2 ** (LONGEST - 1) - 1):
            prefixes |= {2 * node + 1: (*prefixes[node], 1), 2 * node + 2: (*prefixes[node], 2)}
        values = self.logits.detach().numpy()
        return {" ".join(map(str, prefix)): values[node, list(WORDS)] for node, prefix in prefixes.items()}, prefixes


def hypothesis(sentence):
    """The oracle's sentence as ours, which has no end token."""
    ended = sentence[-1] == 0
    return Sentence(tuple(WORDS[word] for word in sentence[: len(sentence) - ended]), 0.0, 0.0, ended)


@pytest.fixture
def case():
    """A table, the rewards of all its sentences, and a training of the table with those rewards."""
    model = Table()
    sentences = oracle.all_sentences(3, 0, LONGEST)
    drawn = np.random.default_rng(0).normal(size=len(sentences))
    rewards = dict(zip(sentences, drawn.tolist(), strict=True))
    by_ours = {hypothesis(sentence)[::3]: reward for sentence, reward in rewards.items()}
    settings = DecodingSettings(max_length=LONGEST, ban_unknown=True)

    def training(**scst):
        objective = SelfCritical.__new__(SelfCritical)  # without a collection
        objective.settings = SelfCriticalSettings(**scst)
        objective.run = SimpleNamespace(
            settings=SimpleNamespace(seed=1),
            trained=SimpleNamespace(model=model, recipe=SimpleNamespace(decoding=settings)),
            optimization=SimpleNamespace(fabric=Fabric(accelerator="cpu", devices=1), model=model),
        )
        objective.rows = {"image": 0}
        objective.reward = lambda _, hypotheses: [by_ours[one[::3]] for one in hypotheses]
        return objective

    return model, rewards, settings, training


def gradients(model, loss):
    """Gradient of each logit of the oracle's words, by prefix."""
    model.zero_grad()
    loss.backward()
    values, prefixes = model.logits.grad.numpy(), model.theta[1]
    unused = [token for token in range(VOCAB) if token not in WORDS]
    assert not values[:, unused].any(), "tokens that are never generated have no gradient"
    return {prefix: values[node, list(WORDS)] for node, prefix in prefixes.items()}


def test_the_gradient_of_each_sentence_equals_the_oracle(case):
    model, rewards, settings, _ = case
    batch = collate([Example("image")])
    for sentence, reward in rewards.items():
        sampled = sampled_batch(batch, [0], [hypothesis(sentence)])
        advantage = torch.tensor([reward - 0.3], dtype=torch.float64)
        found = gradients(model, policy_loss(model(sampled).logits, sampled, advantage, settings).value)
        expected = oracle.logit_gradients(oracle.table_policy, model.theta[0], sentence, reward, 0.3)
        for t, row in enumerate(expected):
            np.testing.assert_allclose(found[sentence[:t]], row, atol=1e-12)


def test_the_expected_gradient_equals_the_oracle(case):
    """The mean of all sentences, each by its probability, is the gradient of the negative expected reward."""
    model, rewards, settings, _ = case
    theta, prefixes = model.theta
    sampled = sampled_batch(collate([Example("image")]), [0] * len(rewards), [hypothesis(one) for one in rewards])
    shares = [np.exp(oracle.log_prob(oracle.table_policy, theta, sentence)) for sentence in rewards]
    weighted = torch.tensor([p * r for p, r in zip(shares, rewards.values(), strict=True)], dtype=torch.float64)
    loss = policy_loss(model(sampled).logits, sampled, weighted * len(rewards), settings).value
    found = gradients(model, loss)
    expected = oracle.expected_logit_gradients(oracle.table_policy, theta, rewards)
    numerical = oracle.loss_gradient(oracle.table_policy, theta, rewards)
    for prefix in prefixes.values():
        np.testing.assert_allclose(found[prefix], expected[prefix], atol=1e-12)
        np.testing.assert_allclose(found[prefix], numerical[" ".join(map(str, prefix))], atol=1e-7)


@pytest.mark.parametrize("baseline", ["greedy", "mean"])
def test_the_mean_of_many_estimates_converges_to_the_oracle(case, baseline):
    model, rewards, _, training = case
    theta, prefixes = model.theta
    step = training(samples=4000, baseline=baseline).loss(collate([Example("image")]), 0)
    found = gradients(model, step.loss)
    expected = oracle.expected_logit_gradients(oracle.table_policy, theta, rewards)
    assert -step.reported.value == pytest.approx(oracle.expected_reward(oracle.table_policy, theta, rewards), abs=0.06)
    for prefix in prefixes.values():
        np.testing.assert_allclose(found[prefix], expected[prefix], atol=0.04)


def test_the_greedy_baseline_is_the_reward_of_the_oracles_greedy_sentence(case):
    model, rewards, _, training = case
    objective, batch = training(samples=3), collate([Example("image")])
    sentences = objective._decode(model, batch, objective.decoding(0))
    (values,) = objective._rewards(batch, sentences)
    greedy = oracle.greedy_sentence(oracle.table_policy, model.theta[0], 0, LONGEST)
    assert sentences[0][0][::3] == hypothesis(greedy)[::3]
    assert objective._advantages([values]) == [[value - rewards[greedy] for value in values[1:]]]
