"""Models of code bases of one modality, each from its checkout (hosts.py), with random weights and without a GPU."""

from collections import abc
from importlib import import_module

import host_imitation
import host_models
import torch


def clip_reid():
    make, clip = import_module("model.make_model_clipreid"), import_module("model.clip.model")
    make.load_clip_to_cpu = lambda name, rows, columns, stride: clip.CLIP(
        512, 224, 12, 768, 16, stride, 77, 49408, 512, 8, 12, rows, columns
    )
    cfg = import_module("config").cfg  # a section of its file is empty, which yacs refuses
    cfg.merge_from_list(["MODEL.NAME", "ViT-B-16", "DATASETS.NAMES", "market1501"])
    cfg.merge_from_list(["INPUT.SIZE_TRAIN", [256, 128], "MODEL.STRIDE_SIZE", [16, 16]])
    return make_run(make.make_model, cfg)


def trans_reid(file):
    host_imitation.stub("torch._six", container_abcs=abc)
    cfg = host_models.configuration(file, ["MODEL.PRETRAIN_CHOICE", "no"])
    return make_run(host_models.factory("model"), cfg)


def make_run(make, cfg):
    images = torch.randn(host_models.BATCH, 3, 256, 128)

    def train(model):
        scores, features, *_ = model.train()(images)
        return sum(value.square().sum() for value in (*scores, *features))

    def evaluate(model, images):
        with torch.no_grad():
            return model.eval()(images)

    model = make(cfg, num_class=751, camera_num=6, view_num=1)
    return host_models.Run(model, cfg, images, train, evaluate)


HOSTS = {
    "CLIP-ReID": clip_reid,
    "TransReID": lambda: trans_reid("Market/vit_base.yml"),
    "TransReID, with JPM": lambda: trans_reid("Market/vit_jpm.yml"),
}
