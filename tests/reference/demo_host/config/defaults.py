"""The keys of DeMo that the miniature reads."""

from yacs.config import CfgNode

_C = CfgNode()
_C.MODEL = CfgNode()
_C.MODEL.NAME = "DeMo"
_C.MODEL.STRIDE_SIZE = [16, 16]
_C.MODEL.GLOBAL_LOCAL = True
_C.MODEL.HDM = False
_C.MODEL.ATM = False
_C.MODEL.HEAD = 4
_C.MODEL.DIRECT = 1
_C.MODEL.DIST_TRAIN = False
_C.INPUT = CfgNode()
_C.INPUT.SIZE_TRAIN = [256, 128]
_C.DATASETS = CfgNode()
_C.DATASETS.NAMES = "RGBNT201"
_C.SOLVER = CfgNode()
_C.SOLVER.MAX_EPOCHS = 2
_C.TEST = CfgNode()
_C.TEST.MISS = "None"
_C.OUTPUT_DIR = "./test"
