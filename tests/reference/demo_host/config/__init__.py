from . import defaults

cfg = defaults._C
