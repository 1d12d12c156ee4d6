"""`UserError`; without torch, as commands that print their help need it."""


class UserError(Exception):
    """A user's mistake: one sentence that names the object, the fault and the remedy."""
