"""What tests/modeling/test_fast_model.py runs in processes of other processors: compiled features are those in float64.

PYTHONPATH=. python tests/helpers/compiled.py
"""

import torch
from numeric import assert_close
from tiny import ENCODER, PIFE, exact, random_images, tiny_model

from demo_sdtps.modeling.inference import inference


def main() -> None:
    model, (images, cameras) = tiny_model(), random_images(6)
    reference, exact_images = exact(model.eval(), images)
    with torch.no_grad():
        # a rounding may change which patches SDTPS keeps
        expected = reference(exact_images, cameras, 1)
    model.backbone.compile_blocks()
    with inference(model, None):
        assert_close(model(images, cameras, 1), expected, *ENCODER, *PIFE)


if __name__ == "__main__":
    main()
