"""What ajet knows of the toy backbone before its code is loaded."""

from __future__ import annotations

from pathlib import Path

from ajet.config.backbones import Descriptor

TOY = Descriptor(
    "toy",
    "trains as local does, and counts its updates",
    can=frozenset({"trains", "serves", "recomputes"}),
    opens="ajet_toys.backbone:ToyBackbone",
    runner="ajet_toys.runner:ToyRunner",
    scorer="ajet_toys.backbone:ToyScorer",
    layer=Path(__file__).with_name("toy.yaml"),
    roots=("toy",),
    idle={"trainer_common.nnodes": "a toy is one process"},
)
