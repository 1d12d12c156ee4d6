"""Package metadata. Installing makes demo_sdtps importable, with the command demo-sdtps and the published configurations."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
PACKAGE = (ROOT / "demo_sdtps" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"', PACKAGE, re.M)[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
if REPO_URL := os.environ.get("REPO_URL", ""):
    # An index shows this page without the files beside it.
    README = re.sub(r"\]\((?!https:|#)", f"]({REPO_URL}/blob/v{VERSION}/", README)
    README = re.sub(r'\b(src|srcset)="', rf"\g<0>{REPO_URL}/raw/v{VERSION}/", README)

SEPS = ["transformers>=4.48"]
"""The text tower of SEPS."""
ONNX = ["onnx>=1.17", "onnxscript>=0.3", "onnxruntime>=1.20"]
"""demo-sdtps export onnx."""
OPENVINO = [*ONNX, "openvino>=2025.0", "nncf>=2.15"]
"""demo-sdtps export openvino. Not in the development environment: several hundred megabytes."""
SEARCH = ["lancedb>=0.40", "jinja2>=3.1"]
"""demo-sdtps search."""
REPORT = ["jinja2>=3.1", "plotly>=5.20", "scikit-learn>=1.5"]
"""demo-sdtps report --html, analyse and draw embedding."""
PARQUET = ["pyarrow>=17"]
"""demo-sdtps export --output X.parquet."""
DOCS = ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.25", "latex2mathml>=3.77"]
"""make docs."""
TESTS = [
    "pytest>=8",
    "pytest-xdist>=3.8",
    "selenium>=4.20",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "ipykernel>=6.29",
    "open_clip_torch>=2.24",
    "build>=1.2",
    "setuptools>=70.1",
]
LINT = ["ruff>=0.6", "mypy>=1.11"]

setup(
    name="demo-sdtps",
    version=VERSION,
    description="Multi-modal re-identification: DeMo with sparse and dense token-aware patch selection (SDTPS)",
    long_description=README,
    long_description_content_type="text/markdown",
    url=REPO_URL,
    license="MIT",
    python_requires=">=3.10",
    packages=[
        *find_packages(include=["demo_sdtps", "demo_sdtps.*", "seps"]),
        "demo_sdtps.configs",
    ],
    package_dir={"demo_sdtps.configs": "configs"},
    package_data={
        "demo_sdtps": ["py.typed", "reports/templates/*", "retrieval/*.md"],
        "demo_sdtps.configs": ["*/*.yml"],
    },
    entry_points={"console_scripts": ["demo-sdtps = demo_sdtps.commands:main"]},
    install_requires=[
        "vit-slim>=0.3",  # the folder vit_slim of the checkout
        "torch>=2.6",
        "torchvision>=0.21",
        "timm>=1.0.20",
        "yacs>=0.1.8",
        "pyyaml>=6",
        "filelock>=4.2",
        "fvcore>=0.1.5.post20221221",
        "numpy>=1.26",
        "scipy>=1.15",
        "tqdm>=4.66",
        "pillow>=11",
        "matplotlib>=3.8",
        "tensorboard>=2.16",
        "safetensors>=0.4",
        "huggingface_hub>=0.26",
    ],
    extras_require={
        "seps": SEPS,
        "onnx": ONNX,
        "openvino": OPENVINO,
        "search": SEARCH,
        "report": REPORT,
        "parquet": PARQUET,
        "docs": DOCS,
        "dev": [
            *SEPS,
            *ONNX,
            *SEARCH,
            *REPORT,
            *PARQUET,
            *DOCS,
            *TESTS,
            *LINT,
        ],
    },
)
