"""The comparison with other programs: figures are read from their logs, and a peer that cannot be run is a line."""

import ast
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOGS = {
    "joeynmt-train": "Epoch   1, total training loss: 845.86, num. of seqs: 640, num. of tokens: 7921, 16.0000[sec]\n"
    "Epoch   2, total training loss: 621.96, num. of seqs: 640, num. of tokens: 7921, 8.0000[sec]\n",
    "joeynmt-test": "Predicting 64 example(s)... (Beam search with beam_size=6)\nGeneration took 0.5000[sec].\n",
    "nmtpytorch-train": "mins (total: 0.26 mins)   (40 samples/sec)\nmins (total: 0.23 mins)   (46 samples/sec)\n",
    "nmtpytorch-translate": "Starting translation\nTook 1.500 seconds, 42 sent/sec\n",
}
RATES = {"joeynmt-train": 80, "joeynmt-test": 128, "nmtpytorch-train": 46, "nmtpytorch-translate": 42}
RESULT = '{"count": 100, "seconds": 0.5}\n'


@pytest.fixture
def peers(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    monkeypatch.setenv("LIMNER_PEERS", str(tmp_path))
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(peers, "real_data", lambda: None)
    monkeypatch.setattr(peers, "VECTORS", 300)
    return peers


def test_figures_are_read_from_the_logs_and_a_peer_that_cannot_be_installed_is_a_line(peers, monkeypatch, capsys):
    def run_program(command):
        if "faiss-cpu" in command:
            raise RuntimeError("no matching distribution")
        if "pip" in command or "-c" in command:
            return "1.2.3\n"
        if "--random" in command:
            return "generate: 4.00 s of processor time\nlimner: 2.00 s of processor time\n"
        return LOGS.get(command[2], RESULT)

    monkeypatch.setattr(peers, "run_program", run_program)
    peers.peers()
    lines = {line["name"].split(", ")[1]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines.keys() == {*(comparison.program for comparison in peers.COMPARISONS), "generate"}
    assert lines["faiss"]["unit"] == "not measured" and lines["faiss"]["reason"] == "no matching distribution"
    assert {program: lines[program]["peer"] for program in RATES} == RATES
    assert all(lines[program]["value"] == pytest.approx(200 / rate, rel=1e-3) for program, rate in RATES.items())
    assert lines["usearch"]["value"] == 1 and lines["usearch"]["version"] == "1.2.3"
    assert lines["generate"]["value"] == 2


def test_a_log_without_figures_is_the_reason(peers):
    with pytest.raises(ValueError, match="got: Segmentation fault"):
        peers.read_rate(peers.RESULT, "Segmentation fault\n")


def test_the_programs_exist_and_run_on_the_data(peers, tmp_path, capsys):
    from peer_programs import PROGRAMS

    programs = {name for one in peers.COMPARISONS for name in (one.program, f"limner-{one.ours}")}
    assert programs == set(PROGRAMS)
    peers.write_data(tmp_path)
    for name in ("scores", "cider", "rouge", "significance", "vectors"):
        PROGRAMS[f"limner-{name}"](tmp_path)
        assert peers.read_rate(peers.RESULT, capsys.readouterr().out) > 0


def test_it_is_one_of_the_benchmarks():
    (table,) = (
        node.value
        for node in ast.parse((BENCHMARKS / "run.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BENCHMARKS"
    )
    assert dict(zip(map(ast.literal_eval, table.keys), map(ast.unparse, table.values), strict=True))["peers"] == "peers"
