"""What tests/test_fast_model.py runs in processes of other processors: how far compiled features are from eager ones.

    python tests/compiled.py
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps  # noqa: F401

    sys.path[:] = [folder for folder in sys.path if folder != str(ROOT)]

import torch
from tiny import random_images, tiny_model

from demo_sdtps.engine.runtime import compile_model, inference


def main() -> None:
    eager, compiled = tiny_model(), tiny_model()
    compile_model(compiled, torch.device("cpu"))
    images, cameras = random_images(6)
    features = []
    for model in (eager, compiled):
        with inference(model, None):
            features.append(model(images, cameras))
    print((features[0] - features[1]).abs().max().item())


if __name__ == "__main__":
    main()
