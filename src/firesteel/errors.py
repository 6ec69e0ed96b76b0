"""The one kind of error a user can mend; knows nothing of what raised it."""


class UserError(Exception):
    """Something the user can change: the message names the cause and the cure, no traceback is shown."""


class KernelError(UserError):
    """An implementation was asked for that does not exist, cannot run here or refuses these arguments."""


class RequestError(UserError):
    """A request that can never run here: larger than the context or than the cache, or a name already taken."""
