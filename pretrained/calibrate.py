"""Calibrate a captioner on the validation split: tags in its captions, and its confidence.

    python pretrained/calibrate.py RUN --collection COLLECTION [--photographs FOLDER]

writes calibration.json and calibration.safetensors into RUN and prints what was measured; with `--measure test` it only
measures an existing calibration on a split. COLLECTION holds the grid features of RUN, here those of make.py. The
weights of RUN must not change afterwards. FOLDER has the photographs of photographs.tsv: they are captioned, and the
evidence and verdicts go to measured-LANG.tsv. Without them the file of an earlier run is read; without this one, too,
the confidence is fitted on the validation split and on generated images alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from calibration_data import CalibrationData
from choose_tags import choose_tags
from fit_confidence import fit_confidence
from limner.data.collection import Collection
from limner.runs.calibration import load_calibration, save_calibration
from measure_calibration import measure


def main() -> None:
    """Calibrate, or measure a calibration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--photographs", type=Path, help="folder with the photographs of photographs.tsv")
    parser.add_argument("--measure", metavar="SPLIT", help="measure the calibration on this split, and change nothing")
    options = parser.parse_args()
    data = CalibrationData(options.run, Collection.open(options.collection))
    if options.measure:
        calibration = load_calibration(options.run)
        assert calibration is not None, f"{options.run}: no calibration"
        data.tagger.background = calibration.settings.background
        data.use_statistics(calibration.statistics)
    else:
        calibration = fit_confidence(data, choose_tags(data), options.photographs)
        save_calibration(options.run, calibration)
    print(json.dumps(measure(data, calibration, options.measure or "val"), indent=1))


if __name__ == "__main__":
    main()
