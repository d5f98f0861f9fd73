"""References to secrets are resolved from files and the environment, and nothing else is."""

from pathlib import Path

import pytest

from forge_tools.errors import SecretNotFoundError
from forge_tools.model.secret_names import is_reference
from forge_tools.secrets.detection import SecretSource


def resolve(value: object, folder: Path | None = None) -> tuple[object, list[str]]:
    found = list[str]()
    return SecretSource({"DB": "hunter22"}, folder).resolve(value, found), found


def test_a_reference_becomes_what_the_worker_has_under_that_name() -> None:
    assert resolve("secret://DB") == ("hunter22", ["hunter22"])
    assert resolve({"a": ["secret://DB", 1, None]}) == ({"a": ["hunter22", 1, None]}, ["hunter22"])


@pytest.mark.parametrize(
    "text", ["DB", "secret://", "secret://DB/x", "x secret://DB", "secret://D B", "secret://../DB", 7]
)
def test_what_is_not_a_reference_stays_what_it_is(text: object) -> None:
    assert not is_reference(text)
    assert resolve(text) == (text, [])


def test_a_file_comes_before_the_environment_and_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "DB").write_text("first\n")
    assert resolve("secret://DB", tmp_path)[0] == "first"

    (tmp_path / "DB").write_text("second\r\n")
    assert resolve("secret://DB", tmp_path)[0] == "second"


def test_a_secret_that_is_not_there_is_named_with_the_places_that_were_looked_at(tmp_path: Path) -> None:
    with pytest.raises(SecretNotFoundError, match="secret://NOPE") as caught:
        resolve("secret://NOPE", tmp_path)
    assert "FORGE_SECRET_NOPE" in caught.value.message
    assert str(tmp_path / "NOPE") in caught.value.message

    with pytest.raises(SecretNotFoundError, match="FORGE_SECRETS_DIR"):
        resolve("secret://NOPE")


def test_a_file_that_cannot_be_a_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "BIG").write_bytes(b"x" * 65_537)
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe")
    (tmp_path / "FOLDER").mkdir()

    for name, said in (("BIG", "65,536"), ("BINARY", "base64"), ("FOLDER", "Unknown secret")):
        with pytest.raises(SecretNotFoundError, match=said):
            resolve(f"secret://{name}", tmp_path)
