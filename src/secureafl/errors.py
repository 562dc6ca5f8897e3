"""Every error this package raises on purpose.

    SecureAFLError
    ├── SettingsError          a configuration value or key is wrong: the operator's to fix
    │   └── UnknownSettingError    a key nobody knows, with the nearest one that exists
    ├── LayoutError            named arrays do not fit the model they are meant for
    ├── DataError              a data set is missing or not as expected, with what to do about it
    ├── StateError             saved state does not belong to the object it is loaded into
    ├── StoreError             a run's files or database cannot be written, or are damaged
    │   └── UnreachableError       the database cannot be reached just now: try again
    ├── RowsError              clients' rows cannot be kept or read where they lie; the run can be resumed
    ├── PrivacyError           a client's private training cannot go on, or is set up wrongly
    ├── EvaluationError        the user's `evaluate` failed; the run itself is whole and on disk
    └── FederationError        a part of the server failed, and with it the run; it can be resumed

A client's fault is never an exception: it is a `Verdict` that refuses the update and says why.
"""

from __future__ import annotations


class SecureAFLError(Exception):
    """Base of all errors raised on purpose."""


class SettingsError(SecureAFLError):
    """A configuration value is missing or out of bounds."""


class UnknownSettingError(SettingsError):
    """A configuration key does not exist."""


class LayoutError(SecureAFLError):
    """Named arrays do not match the model's layout."""


class DataError(SecureAFLError):
    """A data set cannot be found or read."""


class StateError(SecureAFLError):
    """Saved state does not fit the object it is loaded into."""


class StoreError(SecureAFLError):
    """A run's files cannot be read or written, or are damaged."""


class UnreachableError(StoreError):
    """A run's database cannot be reached just now; what it holds may be whole."""


class RowsError(SecureAFLError):
    """The rows of clients cannot be read or written: what was being judged is not on record, and the run must stop."""


class PrivacyError(SecureAFLError):
    """Training under differential privacy is set up wrongly, or has nothing left to spend."""


class EvaluationError(SecureAFLError):
    """The user's `evaluate` failed in a run that is otherwise whole."""


class FederationError(SecureAFLError):
    """A part of the server failed, and the run was ended before anything else could go wrong."""


def described(error: OSError) -> str:
    """What the system refused, and for which file."""
    return f"{error.strerror}: {error.filename}" if error.filename else str(error)
