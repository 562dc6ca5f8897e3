"""SecureAFL: an asynchronous federated-learning server that assumes some of its clients are malicious."""

from secureafl.defenses import DEFENSES, Defense, SecureAFL, SecureAFLSettings, build_defense
from secureafl.errors import SecureAFLError
from secureafl.layout import Layout
from secureafl.server import Machine, MachineSettings, Ticket
from secureafl.types import ClientId, Model, Reason, Update, Vector, Verdict

__version__ = "0.1.0"

__all__ = [
    "DEFENSES",
    "ClientId",
    "Defense",
    "Layout",
    "Machine",
    "MachineSettings",
    "Model",
    "Reason",
    "SecureAFL",
    "SecureAFLError",
    "SecureAFLSettings",
    "Ticket",
    "Update",
    "Vector",
    "Verdict",
    "__version__",
    "build_defense",
]
