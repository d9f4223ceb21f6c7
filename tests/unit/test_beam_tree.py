"""The recorded tree of a beam search against a search with plain lists."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_beam_search import BOS, EOS, PAD, Chain, Fixed, images, plain_beam

from limner.apps.cli import explanations
from limner.decoding.selection import SampleRecorder
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.inference.explain_beam import BeamRecorder


@pytest.mark.parametrize("beam_size", [1, 2, 3])
@pytest.mark.parametrize("length_penalty", [0.0, 1.2])
@pytest.mark.parametrize("max_length", [2, 7])
def test_the_tree_holds_every_hypothesis_that_was_in_the_beam(beam_size, length_penalty, max_length):
    """Images in one batch finish at different steps; each has its own tree."""
    settings = DecodingSettings(
        beam_size=beam_size, length_penalty=length_penalty, max_length=max_length, ban_unknown=True
    )
    seeds = range(1, 9)
    recorder = BeamRecorder(len(seeds))
    hypotheses = beam_search([Chain()], images(*seeds), settings, trace=recorder)
    assert hypotheses == beam_search([Chain()], images(*seeds), settings), "recording changes nothing"
    outcomes = set()
    for seed, tree, n_best in zip(seeds, recorder.trees, hypotheses, strict=True):
        sentences, expected = plain_beam(Chain().table(seed).log_softmax(-1).tolist(), settings)
        ours = {tree.tokens(number): node for number, node in enumerate(tree.nodes)}
        assert len(ours) == len(tree.nodes)
        assert {tokens: node.outcome for tokens, node in ours.items()} == {t: end for t, (_, end) in expected.items()}
        for tokens, node in ours.items():
            assert node.total == pytest.approx(expected[tokens][0], abs=1e-9)
            assert node.length == len(tokens)
            if tokens:
                assert node.log_prob == pytest.approx(node.total - expected[tokens[:-1]][0], abs=1e-9)
                assert tree.tokens(node.parent) == tokens[:-1]
        ranking = tree.ranking(settings)
        assert [tree.tokens(one.node) for one in ranking] == [(*one.tokens, *[EOS] * one.ended) for one in sentences]
        assert ranking[0].score == n_best[0].score
        outcomes |= {node.outcome for node in tree.nodes}
    assert outcomes >= {"continued", "complete"} | ({"dropped"} if beam_size > 1 else set())
    assert "cut off" in outcomes or max_length > 2


def test_a_prefix_is_the_root():
    settings = DecodingSettings(beam_size=2, max_length=5)
    recorder = BeamRecorder(2)
    beam_search([Chain()], images(1, 2), settings, [[4, 5], [6]], trace=recorder)
    first, second = recorder.trees
    assert (first.prefix, second.prefix) == ((4,), (6,))  # of the length of the shortest prefix
    assert first.tokens(1)[:2] == (4, 5), "the rest of a longer prefix is forced"
    assert second.tokens(1)[:1] == (6,)
    table = Chain().table(1).log_softmax(dim=-1)
    assert first.nodes[0].total == pytest.approx(float(table[PAD, BOS, 4]), abs=1e-9)
    assert math.isfinite(first.nodes[1].total)


def test_explanations_as_text_json_and_plots(trained, tiny, tmp_path):
    from limner.apps.report.beam_plot import beam_text, beam_tree
    from limner.inference.captioner import Captioner
    from limner.plots.figures import save_plot

    captioner = Captioner.load(trained)
    image = tiny.path / "test0.png"
    explanation = captioner.explain_beam(image, beam_size=3, n_best=3, length_penalty=0.5)
    (captions,) = captioner.describe([image], beam_size=3, n_best=3, length_penalty=0.5)
    assert [explanation.sentence(one.node) for one in explanation.ranking[:3]] == [one.text for one in captions]
    assert [one.score for one in explanation.ranking[:3]] == pytest.approx([one.score for one in captions], rel=1e-5)
    stored = json.loads(json.dumps(explanation.to_json()))
    assert stored["ranking"][0]["text"] == captions[0].text
    assert [one["outcome"] for one in stored["hypotheses"]] == [node.outcome for node in explanation.tree.nodes]
    text = beam_text(explanation)
    assert text.startswith("<s>")
    assert f"  {captions[0].text}" in text.split("rank")[1]
    assert text.count("</s>") == sum(node.outcome == "complete" for node in explanation.tree.nodes)
    assert "log P / length^0.5" in text
    plain = beam_text(captioner.explain_beam(image, beam_size=3, length_penalty=0.0)).splitlines()
    (header,) = [number for number, line in enumerate(plain) if line.startswith("rank")]
    assert plain[header].split() == ["rank", "log", "P", "length", "sentence"]
    best = plain[header + 1]  # the numbers end below the names of their columns
    assert best.startswith("#1 ") and best[:15].count(".") == 1 and plain[header].index("log P") + 5 == 14
    figure = beam_tree(explanation)
    drawn = [label.get_text() for label in figure.axes[0].texts]
    assert drawn.count("#1") == 1
    totals = {f"−{-node.total:.2f}" for node in explanation.tree.nodes[1:] if node.total <= -0.005}
    assert totals <= set(drawn)
    for suffix in ("png", "svg"):
        assert save_plot(figure, tmp_path / f"tree.{suffix}").stat().st_size > 1000


def test_sampling_has_no_beam(trained, tiny):
    from limner.errors import SettingsError
    from limner.inference.captioner import Captioner

    with pytest.raises(SettingsError, match="no beam to explain"):
        Captioner.load(trained).explain_beam(tiny.path / "test0.png", sample=SampleSettings().model_dump())


def test_the_trace_of_a_sample_is_a_bundle_of_paths():
    """The search calls a trace for every selection; sampled hypotheses continue themselves."""
    settings = DecodingSettings(beam_size=3, n_best=3, max_length=4, sample=SampleSettings(seed=2))
    recorder = BeamRecorder(1)
    torch.manual_seed(0)
    (drawn,) = beam_search([Chain()], images(5), settings, trace=recorder)
    (tree,) = recorder.trees
    found = sorted(tree.tokens(one.node)[: len(tree.tokens(one.node))] for one in tree.ranking(settings))
    assert found == sorted((*one.tokens, EOS) if one.ended else one.tokens for one in drawn)


@pytest.mark.parametrize(("max_length", "count"), [(2, 4), (9, 4), (9, 1)])
def test_samples_are_recorded_in_order_after_the_greedy_sentence(max_length, count):
    settings = DecodingSettings(
        beam_size=count, n_best=count, max_length=max_length, sample=SampleSettings(seed=2, greedy_first=True)
    )
    batch, recorder = images(1, 2, 3, 4), SampleRecorder(4, count)
    found = beam_search([Chain()], batch, settings, trace=recorder)
    greedy = beam_search([Chain()], batch, DecodingSettings(max_length=max_length))
    drawn = DecodingSettings(beam_size=count, n_best=count, max_length=max_length, sample=SampleSettings(seed=2))
    others = SampleRecorder(4, count)
    beam_search([Chain()], batch, drawn, trace=others)
    cases = zip(recorder.hypotheses(), found, greedy, others.hypotheses(), strict=True)
    for rows, hypotheses, (best,), plain in cases:
        assert sorted(rows) == sorted(one._replace(totals=()) for one in hypotheses)
        assert rows[0] == best._replace(totals=())
        assert rows[1:] == plain[1:], "the greedy sentence changes no draw"


def test_a_sample_without_possible_tokens_is_recorded_as_it_was_cut_off():
    possible, recorder = Fixed([-math.inf, -math.inf, 0.0, -math.inf, 0.0, -math.inf]), SampleRecorder(2, 3)
    settings = DecodingSettings(beam_size=3, n_best=3, max_length=4, sample=SampleSettings())
    found = beam_search([possible], images(0, 1), settings, [(4, 5), ()], trace=recorder)
    for rows, hypotheses in zip(recorder.hypotheses(), found, strict=True):
        assert set(rows) == {one._replace(totals=()) for one in hypotheses}


@pytest.mark.parametrize(("tokens", "notes"), [((5, 6), 0), ((7,), 1)])
def test_a_note_says_when_concepts_choose_another_caption(tokens, notes, capsys):
    described = [[Sentence((5, 6), -1.0, -1.0, text="a turtle on a wall")]]
    captioner = SimpleNamespace(describe=lambda images, **options: described)
    text = "a turtle on a wall" if tokens == (5, 6) else "a wall"
    explanations._note_of_concepts(captioner, Path("a.jpg"), Sentence(tokens, -1.0, -1.0, text=text), {})
    printed = capsys.readouterr().err
    assert printed.count("'a turtle on a wall'") == printed.count("\n") == notes
