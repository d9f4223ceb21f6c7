"""The contract of all models, checked on every case of `models.py`."""

import dataclasses

import pytest
import torch
from models import CASES, VOCAB, Case, batch, example

from limner.data.examples import collate
from limner.decoding.automaton import Automaton
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search, select
from limner.layers.all_pairs import PairOptions
from limner.models import Model
from limner.models.protocols import CountBasedModel
from limner.retrieval.fast import pair_scorer, tree_log_probs
from limner.runs.training_settings import AdamSettings, TrainingSettings
from limner.storage.tensors import load_tensors, save_tensors
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss
from limner.training.optimizers import build_optimizer

pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def build(case: Case, noise: float = 0.1) -> Model:
    torch.manual_seed(1)
    model = case.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initial biases are zero and would hide mistakes
            parameter.add_(noise * torch.randn_like(parameter))
    if isinstance(model, CountBasedModel):
        model.fit([example(case, seed, seed % 7).target for seed in range(20)])
    return model.double()


def double(one):
    move = lambda value: value.double() if value is not None and value.is_floating_point() else value  # noqa: E731
    return dataclasses.replace(one, image=type(one.image)(*map(move, one.image)))


def tensors(tree):
    """Tensors of nested tuples, any of which may be None."""
    if tree is None or isinstance(tree, torch.Tensor):
        return [] if tree is None else [tree]
    return [tensor for part in tree for tensor in tensors(part)]


def test_step_equals_forward(case: Case) -> None:
    model, data = build(case), double(batch(case))
    expected = model(data).logits
    memory = model.encode(data)
    state = model.start(memory)
    for position in range(data.target_in.shape[1]):
        logits, state = model.step(data.target_in[:, position], memory, state)
        torch.testing.assert_close(logits, expected[:, position])


def test_hypotheses_of_one_example_share_the_encoded_inputs(case: Case) -> None:
    """A step of N K rows equals K steps of N rows, for any prefix of each hypothesis."""
    model, data, width = build(case), double(batch(case)), 3
    memory = model.encode(data)
    tokens = torch.randint(4, VOCAB, (4, len(data), width))  # position, example, hypothesis
    together = select(model.start(memory), torch.arange(len(data)).repeat_interleave(width))
    alone = [model.start(memory) for _ in range(width)]
    for words in tokens:
        logits, together = model.step(words.flatten(), memory, together)
        for k in range(width):
            expected, alone[k] = model.step(words[:, k], memory, alone[k])
            torch.testing.assert_close(logits.unflatten(0, (-1, width))[:, k], expected)


@torch.no_grad()
def test_step_does_not_modify_its_inputs(case: Case) -> None:
    model, data = build(case), double(batch(case))
    memory = model.encode(data)
    state = model.start(memory)
    before = [value.clone() for value in tensors((memory, state))]
    model.step(data.target_in[:, 0], memory, state)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors((memory, state)), strict=True))


def test_later_tokens_do_not_affect_earlier_logits(case: Case) -> None:
    model, data = build(case), double(batch(case))
    changed = data.target_in.clone()
    changed[:, 3:] = SPECIAL_TOKENS.unk
    before = model(data).logits[:, :3]
    after = model(dataclasses.replace(data, target_in=changed)).logits[:, :3]
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_padding_batch_composition_and_order_do_not_change_results(case: Case) -> None:
    model, data = build(case), double(batch(case))
    together = sentence_log_probs(model(data), data)
    lengths = (3, 1, 5, 0)
    for row, length in enumerate(lengths):
        alone = double(collate([example(case, row, length)]))
        torch.testing.assert_close(sentence_log_probs(model(alone), alone)[0], together[row])
    backwards = double(collate([example(case, row, lengths[row]) for row in (3, 2, 1, 0)]))
    torch.testing.assert_close(sentence_log_probs(model(backwards), backwards).flip(0), together)


def test_a_batch_may_mix_examples_with_and_without_images(case: Case) -> None:
    model = build(case)
    mixed = [example(case, row, length, with_image=row % 2 == 1) for row, length in enumerate((3, 1, 5, 0))]
    data = double(collate(mixed))
    together = sentence_log_probs(model(data), data)
    for row, one in enumerate(mixed):
        alone = double(collate([one]))
        torch.testing.assert_close(sentence_log_probs(model(alone), alone)[0], together[row])


def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model, data = build(case).train(), double(batch(case))
    if isinstance(model, CountBasedModel):
        pytest.skip("it is counted and has no parameters")
    word_loss(model(data), data).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert idle == []


def test_models_that_use_the_image_depend_on_it(case: Case) -> None:
    model, data = build(case), double(batch(case))
    other = double(collate([example(case, row + 50, 3) for row in range(4)]))
    before, after = model(data).logits, model(dataclasses.replace(data, image=other.image)).logits
    assert torch.allclose(before, after) is not case.uses_image
    assert model.uses_image is case.uses_image


def test_a_missing_image_gives_finite_and_different_logits(case: Case) -> None:
    model = build(case)
    lone = double(collate([example(case, 0, 3), example(case, 0, 3, with_image=False)]))
    logits = model(lone).logits
    assert torch.isfinite(logits).all()
    assert torch.allclose(logits[0], logits[1]) is not case.uses_image


def test_weights_round_trip(case: Case, tmp_path) -> None:
    model, data = build(case), double(batch(case))
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    other = case.build().double().eval()
    other.load_state_dict(load_tensors(tmp_path / "model.safetensors"))
    torch.testing.assert_close(other(data).logits, model(data).logits, rtol=0, atol=0)


def test_one_batch_can_be_overfitted(case: Case) -> None:
    torch.manual_seed(0)
    model, data = case.build().train(), batch(case)
    if isinstance(model, CountBasedModel):
        pytest.skip("it is counted and has no parameters")
    # Without inputs that distinguish the four sentences, the first word costs ln 4; there are 13 words.
    enough = case.floor + (0.05 if case.uses_image or case.translates else 0.6)
    settings = TrainingSettings(optimizer=AdamSettings(lr=case.lr))
    optimizer = build_optimizer(model.named_parameters(), settings)
    for _ in range(250):
        optimizer.zero_grad()
        loss = word_loss(model(data), data)
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < enough:
            break
    assert float(loss.detach()) < enough


def test_all_pairs_scores_equal_scores_one_by_one(case: Case) -> None:
    if case.translates:
        pytest.skip("its sentences are searched by what they translate, not by pictures")
    model, data = build(case), double(batch(case))
    data = dataclasses.replace(data, ids=("",) * len(data))  # pairs have no ids, by which random locations are drawn
    images = double(collate([example(case, row + 20, 1) for row in range(3)])).image
    with torch.no_grad():
        batches = [dataclasses.replace(data, image=images.select(torch.full((4,), column))) for column in range(3)]
        general = torch.stack([sentence_log_probs(model(pairs), pairs) for pairs in batches], 1).float()
        for budget in (1, 3000, 1 << 20):
            torch.testing.assert_close(tree_log_probs(model, images, data, budget), general, rtol=1e-5, atol=1e-5)
        if scorer := pair_scorer(model):
            for budget in (1, 3000, 1 << 20):
                halves = [images.select(torch.tensor(rows)) for rows in ([0, 1], [2])]
                fast = torch.cat(list(scorer.log_probs(halves, data, PairOptions(budget, torch.float64))), 1)
                torch.testing.assert_close(fast.float(), general, rtol=1e-5, atol=1e-5)


def test_a_full_beam_equals_brute_force_enumeration(case: Case) -> None:
    model = build(case, noise=0.7)
    data = double(collate([example(case, 3, 0)]))
    longest = 3
    everything: dict[tuple[tuple[int, ...], bool], float] = {}  # by words and whether they end
    words = [word for word in range(VOCAB) if word not in (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos)]

    def enumerate_all(before: tuple[int, ...], total: float, memory, state) -> None:
        if len(before) == longest:
            everything[before, False] = total  # cut off
            return
        logits, after = model.step(torch.tensor([before[-1] if before else SPECIAL_TOKENS.bos]), memory, state)
        log_probs = logits.log_softmax(1)[0].tolist()
        if before:
            everything[before, True] = total + log_probs[SPECIAL_TOKENS.eos]
        for word in words:
            enumerate_all((*before, word), total + log_probs[word], memory, after)

    with torch.no_grad():
        memory = model.encode(data)
        enumerate_all((), 0.0, memory, model.start(memory))
    count = len(everything)
    settings = DecodingSettings(beam_size=count, n_best=count, min_length=1, max_length=longest)
    result = beam_search([model], data, settings)[0]
    assert (result[0].tokens, result[0].ended) == max(everything, key=everything.__getitem__)
    assert {(one.tokens, one.ended): one.log_prob for one in result} == pytest.approx(everything)
    greedy = beam_search([model], data, DecodingSettings(min_length=1, max_length=longest))[0][0]
    assert greedy.log_prob <= result[0].log_prob + 1e-6


def test_hypotheses_include_the_words_that_they_must(case: Case) -> None:
    """A word or a phrase in every sentence of one example; the other example has no constraints."""
    model = build(case, noise=0.7)
    data = double(collate([example(case, row, 0) for row in (3, 1)]))
    settings = DecodingSettings(beam_size=2, n_best=2, max_length=5, ban_unknown=True)
    constraints = [Automaton.build([[(5, 6), (7,)], [(8,)]]), Automaton.build([])]
    with torch.no_grad():
        constrained, plain = beam_search([model], data, settings, constraints=constraints)
        expected = beam_search([model], data, settings)[1]
    assert all(8 in one.tokens for one in constrained)
    assert all(7 in one.tokens or (5, 6) in zip(one.tokens, one.tokens[1:], strict=False) for one in constrained)
    if case.name.startswith("ngram"):  # equal probabilities: either of two continuations may be the first
        return
    assert [(one.tokens, one.log_prob) for one in plain] == [
        (one.tokens, pytest.approx(one.log_prob)) for one in expected
    ]


def test_hypotheses_do_not_depend_on_the_batch(case: Case) -> None:
    model, rows = build(case, noise=0.7), (3, 1, 2, 0)
    settings = DecodingSettings(beam_size=3, n_best=3, max_length=6)

    def result(*chosen: int):
        with torch.no_grad():
            return beam_search(
                [model], double(collate([example(case, row, 0, with_image=row != 2) for row in chosen])), settings
            )

    for row, together in zip(rows, result(*rows), strict=True):
        (alone,) = result(row)
        assert [(one.tokens, one.ended) for one in together] == [(one.tokens, one.ended) for one in alone]
        assert [one.log_prob for one in together] == pytest.approx([one.log_prob for one in alone])
