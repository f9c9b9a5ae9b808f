"""The one exception that a user may meet."""


class InputError(Exception):
    """Something a person gave is wrong: one sentence that names it and says what to do.

    The command line prints the sentence and exits with code 2, without a traceback.
    """
