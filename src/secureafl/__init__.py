"""SecureAFL: an asynchronous federated-learning server that assumes some of its clients are malicious."""

from typing import TYPE_CHECKING

import secureafl.names_of_0_1  # noqa: F401 (imports of earlier names are explained)
from secureafl.lazily import imported

if TYPE_CHECKING:
    from secureafl.defenses import DEFENSES, Defense, SecureAFL, SecureAFLSettings, build_defense
    from secureafl.errors import SecureAFLError
    from secureafl.layout import Layout
    from secureafl.server import Machine, MachineSettings, Ticket
    from secureafl.types import ClientId, Model, Reason, Update, Vector, Verdict

__version__ = "0.2.0"

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

__getattr__ = imported(
    __name__,
    {
        "secureafl.defenses": ("DEFENSES", "Defense", "SecureAFL", "SecureAFLSettings", "build_defense"),
        "secureafl.errors": ("SecureAFLError",),
        "secureafl.layout": ("Layout",),
        "secureafl.server": ("Machine", "MachineSettings", "Ticket"),
        "secureafl.types": ("ClientId", "Model", "Reason", "Update", "Vector", "Verdict"),
    },
)
