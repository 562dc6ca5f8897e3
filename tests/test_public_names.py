import secureafl


def test_public_names() -> None:
    assert sorted(secureafl.__all__) == [
        "ClientId",
        "DEFENSES",
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


def test_every_public_name_exists() -> None:
    assert all(hasattr(secureafl, name) for name in secureafl.__all__)
