from __future__ import annotations

import threading
import warnings

import pytest
import torch

from erpcnet.recording import _waiting

WAIT = "called a synchronizing CUDA operation (Triggered internally at somewhere.)"


def test_waits_of_this_thread_are_found_and_other_warnings_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with _waiting() as found:
            # A feed's thread may wait as it likes.
            worker = threading.Thread(target=warnings.warn, args=(WAIT,))
            worker.start()
            worker.join()
            assert found == []
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
            warnings.warn(WAIT, stacklevel=1)
        warnings.warn("after", stacklevel=1)
    assert found == ["called a synchronizing CUDA operation"]
    assert [str(warning.message) for warning in shown] == ["something else", "after"]
    assert modes == ["warn", 0]
