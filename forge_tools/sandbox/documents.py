"""Documents in the memory of this process, for executors without a database: they end with the process."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from forge_tools.model import Document, DocumentScope, DocumentWriter, Revise
from forge_tools.model.documents import MAX_CHANGED, MAX_DOCUMENTS, is_at, is_below, too_many, too_many_changed


class ProcessDocuments:
    """The newest version of each document. A version number is never reused, even after a document was deleted."""

    is_durable = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: defaultdict[DocumentScope, dict[str, Document]] = defaultdict(dict)
        self._versions: defaultdict[tuple[DocumentScope, str], int] = defaultdict(int)

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List the documents at and below a path that were written last."""
        wanted = [word.lower() for word in words or ()]
        with self._lock:
            below = [one for one in self._kept[scope].values() if is_below(one.path, under)]
        found = [one for one in below if all(word in f"{one.path}\n{one.content}".lower() for word in wanted)]
        latest = sorted(found, key=lambda one: one.updated_at, reverse=True)[:limit]
        return sorted(latest, key=lambda one: one.path)

    async def read(self, scope: DocumentScope, path: str) -> Document | None:
        """Read one; None if there is none."""
        return self._kept[scope].get(path)

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Let `revise` decide the new contents of the documents at these paths, all or nothing."""
        with self._lock:
            kept = self._kept[scope]
            contents = revise(self._at(scope, paths))
            if len((kept.keys() | contents) - {path for path, new in contents.items() if new is None}) > MAX_DOCUMENTS:
                raise too_many(scope)
            for path, content in contents.items():
                self._versions[scope, path] += 1
                kept.pop(path, None)
                if content is not None:
                    version, now = self._versions[scope, path], datetime.now(UTC)
                    kept[path] = Document(
                        path=path, version=version, content=content, author=writer.author, updated_at=now
                    )
            return self._at(scope, paths)

    def _at(self, scope: DocumentScope, paths: Sequence[str]) -> dict[str, Document]:
        kept = self._kept[scope]
        found = {path: one for path, one in kept.items() if any(is_at(path, asked) for asked in paths)}
        if len(found) > MAX_CHANGED:
            raise too_many_changed(paths[0].rstrip("/"))
        return found
