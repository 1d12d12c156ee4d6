"""DeMo's training loop and evaluation in miniature: what they ask of the model, and in which order."""

import logging
import os

import torch
from utils.metrics import R1_mAP_eval


def do_train(cfg, model, train_loader, val_loader, optimizer, loss_fn, num_query):
    logger = logging.getLogger("DeMo.train")
    evaluator = R1_mAP_eval(num_query)
    test_sign = cfg.MODEL.HDM or cfg.MODEL.ATM
    for epoch in range(1, cfg.SOLVER.MAX_EPOCHS + 1):
        model.train()
        for images, labels, cameras in train_loader:
            optimizer.zero_grad()
            output = model(images, label=labels, cam_label=cameras)
            odd = len(output) % 2
            loss = output[-1] if odd else 0
            for first in range(0, len(output) - odd, 2):
                loss = loss + loss_fn(output[first], output[first + 1], labels)
            loss.backward()
            optimizer.step()
            accuracy = (output[0].argmax(dim=1) == labels).float().mean()
            logger.info("epoch %d loss %.3f accuracy %.3f", epoch, float(loss), float(accuracy))
        for pattern in (1, 2, 3) if test_sign else (3,):
            training_neat_eval(
                cfg, model, val_loader, "cpu", evaluator, epoch, logger, return_pattern=pattern
            )
    os.makedirs(cfg.OUTPUT_DIR, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(cfg.OUTPUT_DIR, cfg.MODEL.NAME + "best.pth"))


def training_neat_eval(cfg, model, val_loader, device, evaluator, epoch, logger, return_pattern=1):
    _evaluate(cfg, model, val_loader, evaluator, logger, return_pattern)


def do_inference(cfg, model, val_loader, num_query, return_pattern=1):
    logger = logging.getLogger("DeMo.test")
    _evaluate(cfg, model, val_loader, R1_mAP_eval(num_query), logger, return_pattern)


def _evaluate(cfg, model, val_loader, evaluator, logger, return_pattern):
    evaluator.reset()
    model.eval()
    for images, labels, cameras, *scenes in val_loader:
        with torch.no_grad():
            feature = model(images, cam_label=cameras, return_pattern=return_pattern)
        scenes = scenes if cfg.DATASETS.NAMES == "MSVR310" else []
        evaluator.update((feature, labels, cameras, *scenes, ["name"] * len(labels)))
    cmc, average = evaluator.compute()
    logger.info(
        "pattern %d width %d mAP %.6f Rank-1 %.6f",
        return_pattern,
        feature.shape[1],
        average,
        cmc[0],
    )
