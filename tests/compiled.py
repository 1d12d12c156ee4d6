"""What tests/test_fast_model.py runs in processes of other processors: how far compiled features are from eager ones.

    python tests/compiled.py
"""
import torch
from tiny import random_images, tiny_model

from engine.runtime import compile_model, inference


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
