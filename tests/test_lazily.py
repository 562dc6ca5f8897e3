import subprocess
import sys

import pytest

import secureafl

OF_A_SERVER = ("numba", "secureafl.server", "secureafl.defenses", "secureafl.kernels")


@pytest.mark.parametrize(
    "statement",
    [
        "import secureafl",
        "from secureafl.engines.flower import delta_update, gradient_update, sign_updates, compress_updates",
        "from secureafl.engines.flower import regional_update",
        "from secureafl.engines.pytorch import load_trainable, trainable_state",
        "import secureafl.privacy",
    ],
)
def test_a_clients_process_imports_nothing_of_a_server(statement: str) -> None:
    code = f"{statement}; import sys; print([name for name in {OF_A_SERVER} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'secureafl' has no attribute 'Machin'"):
        _ = secureafl.Machin
    with pytest.raises(ImportError, match="cannot import name 'Machin'"):
        exec("from secureafl import Machin")
