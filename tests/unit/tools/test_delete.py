"""Delete on real files, links and folders."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.read import Read

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]


@pytest.fixture
def call(caller: Callable[[Delete], Call]) -> Call:
    return caller(Delete())


@pytest.fixture
def tree(write: Put, ws: Path) -> Path:
    for number in range(3):
        write(f"build/{number}/f", b"12345")
    return ws / "build"


async def test_a_file_is_deleted(call: Call, write: Put, ws: Path) -> None:
    write("f", b"12345")
    result = await call(file_path="f")
    assert (result.output, os.listdir(ws)) == ("Deleted f (5 bytes)", [])


async def test_a_folder_is_deleted_only_as_a_whole_and_on_request(call: Call, tree: Path) -> None:
    refused = await call(path="build")
    assert refused.error == "build is a directory with 3 files, 3 folders; pass recursive=true to delete it"
    assert refused.error_code == "DIRECTORY_NOT_EMPTY"
    result = await call(path="build/", recursive=True)
    assert (result.output, tree.exists()) == ("Deleted build/ (3 files, 3 folders, 15 bytes)", False)


async def test_an_empty_folder_needs_no_request(call: Call, ws: Path) -> None:
    (ws / "empty").mkdir()
    assert (await call(path="empty")).output == "Deleted empty/ (0 files, 0 bytes)"


@pytest.mark.parametrize("target", ["../secret", "{ws}/../secret", "kept", "nowhere", "link"])
async def test_of_a_link_only_the_link_is_deleted(call: Call, write: Put, ws: Path, target: str) -> None:
    write("kept", b"x")
    (ws / "link").symlink_to(target.format(ws=ws))
    result = await call(path="link", recursive=True)
    assert result.output == "Deleted the link link; its target stays"
    assert (os.listdir(ws), (ws.parent / "secret").exists()) == (["kept"], True)


async def test_a_link_to_a_folder_outside_loses_nothing_there(call: Call, tree: Path, ws: Path) -> None:
    (ws.parent / "other").mkdir()
    (ws.parent / "other/file").write_text("keep")
    (tree / "out").symlink_to("../../other")
    assert (await call(path="build", recursive=True)).metadata["files"] == 4
    assert (ws.parent / "other/file").exists()


@pytest.mark.parametrize("path", [".", "build/..", "..", "{ws}", "{ws}/"])
async def test_the_workspace_itself_is_never_deleted(call: Call, tree: Path, ws: Path, path: str) -> None:
    result = await call(path=path.format(ws=ws), recursive=True)
    assert result.error_code in {"PATH_PROTECTED", "PATH_OUTSIDE_WORKSPACE"}
    assert tree.exists()


async def test_nothing_to_delete_is_a_failure_or_not(call: Call, write: Put) -> None:
    write("file", b"")
    assert (await call(path="fil")).error == "File not found: fil. Similar: file"
    result = await call(path="fil", missing_ok=True)
    assert (result.output, result.metadata["changed"]) == ("Nothing to delete: there is no fil", False)
    assert (await call(path="no/such", missing_ok=True)).success


async def test_a_file_that_was_changed_is_kept(call: Call, caller: Callable[[Read], Call], write: Put) -> None:
    path = write("f", b"old")
    etag = (await caller(Read())(file_path="f")).metadata["etag"]
    path.write_bytes(b"new")
    assert (await call(file_path="f", if_match=etag)).error_code == "STALE_FILE"
    etag = (await caller(Read())(file_path="f")).metadata["etag"]
    assert (await call(file_path="f", if_match=etag)).success
    assert (await call(file_path="f", if_match=etag, missing_ok=True)).error_code == "STALE_FILE"


async def test_a_folder_has_no_etag(call: Call, tree: Path) -> None:
    result = await call(path="build", recursive=True, if_match="b2:00")
    assert (result.error_code, tree.exists()) == ("VALIDATION_ERROR", True)


@pytest.mark.parametrize("name", [".git/config", "a/.env", "deploy.pem"])
async def test_a_folder_with_something_protected_stays_whole(call: Call, tree: Path, write: Put, name: str) -> None:
    write(f"build/{name}", b"x")
    result = await call(path="build", recursive=True)
    assert (result.error_code, f"build/{name.partition('/')[0]}" in result.error) == ("PATH_PROTECTED", True)
    assert (tree / "0/f").exists()


async def test_a_folder_that_cannot_be_emptied_stays_whole(call: Call, tree: Path, as_nobody: Any) -> None:
    as_nobody(tree, *tree.iterdir())
    (tree / "2").chmod(0o555)
    result = await call(path="build", recursive=True)
    dry = await call({"dry_run": True}, path="build", recursive=True)
    (tree / "2").chmod(0o755)
    assert result.error == dry.error == "Permission denied: the content of build/2 cannot be deleted (mode 0555)"
    assert sorted(os.listdir(tree)) == ["0", "1", "2"]


async def test_what_is_not_a_file_can_go_too(call: Call, ws: Path) -> None:
    os.mkfifo(ws / "fifo")
    assert (await call(path="fifo")).success
    (ws / "x").write_text("x")
    assert (await call(path="x/")).error == "x is a file; pass it without the slash"


async def test_in_a_folder_where_all_keep_their_own_the_dry_run_knows(
    call: Call, write: Put, ws: Path, as_nobody: Any
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of somebody else")
    theirs, mine = write("shared/theirs", b"x"), write("shared/mine", b"x")
    os.chown(theirs, 1234, 1234)
    os.chown(theirs.parent, 1234, 1234)
    theirs.chmod(0o666)
    theirs.parent.chmod(0o1777)
    as_nobody(mine)
    for arguments in ({"path": "shared/theirs"}, {"path": "shared", "recursive": True}):
        dry, real = await call({"dry_run": True}, **arguments), await call(**arguments)
        assert not dry.success
        assert (dry.error, dry.error_code) == (real.error, "PERMISSION_DENIED")
        assert dry.error.startswith("Permission denied: shared/theirs belongs to somebody else")
    assert (await call(path="shared/mine")).success
