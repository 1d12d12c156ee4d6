"""Evaluate the miniature with the weights of a file that nobody has."""

import torch
from engine.processor import do_inference
from miniature import batches, parse

from config import cfg
from modeling import make_model

if __name__ == "__main__":
    parse(None)
    torch.manual_seed(1)
    model = make_model(cfg, num_class=4, camera_num=3)
    model.eval()
    model.load_param("your_model.pth")
    do_inference(cfg, model, list(batches(3, 2, True)), 8, return_pattern=3)
