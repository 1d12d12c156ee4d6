from .make_model import make_model as make_model
