"""Models to share, in the Hugging Face manner: a folder with weights and a card, on the Hub or anywhere.

Nothing in such a folder is code, and nothing of it is run: weights are safetensors, settings JSON.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from erpcnet.errors import InputError
from erpcnet.inference.model_card import write_card
from erpcnet.inference.model_file import MODEL, rewrite_classes
from erpcnet.inference.run_files import METRICS, PICTURE, RUN, VALIDATION
from erpcnet.utils.files import as_path, write_atomically

if TYPE_CHECKING:
    from erpcnet.inference.classifier import ZeroShotClassifier

CARD, SETTINGS = "README.md", "config.yaml"
BESIDE = (SETTINGS, METRICS, VALIDATION, RUN, PICTURE)  # of the run, where they are there
FETCHED = (MODEL, *BESIDE)


def save_pretrained(classifier: ZeroShotClassifier, folder: str | Path) -> Path:
    """Write a classifier, with the classes that it knows now, into a folder of its own.

    Args:
        classifier: What `erpcnet.load` returned.
        folder: A new or an empty folder, or one that this wrote before.

    Returns:
        The folder, which `erpcnet.load` and `from_pretrained` take.

    Raises:
        InputError: The folder holds something else, or the classifier did not come from a file.
    """
    source, out = classifier.source, as_path(folder, "the folder")
    if source is None:
        raise InputError("this classifier did not come from a file; save what erpcnet.load returns.")
    if out.exists() and (not out.is_dir() or any(one.name not in (*FETCHED, CARD) for one in out.iterdir())):
        raise InputError(f"{out} holds something else; give a new or an empty folder.")
    if source.resolve().parent == out.resolve():
        raise InputError(f"{out} is where the model lies already; give another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / MODEL, rewrite_classes(source, classifier.classes))
    for name in BESIDE:
        if (source.parent / name).is_file():
            write_atomically(out / name, (source.parent / name).read_bytes())
        else:
            (out / name).unlink(missing_ok=True)  # of a model that was saved here before
    write_card(classifier, out)
    return out


def fetch_pretrained(name: str | Path, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a shared model: a local one, or one of the Hub, downloaded once.

    Args:
        name: A folder, or `OWNER/NAME` on the Hub.
        revision: A branch, tag or commit there.
        token: Of whoever may read it.

    Raises:
        InputError: There is no such model.
    """
    path = as_path(name, "the model")
    if path.exists():
        return path
    parts = str(name).split("/")
    if len(parts) != 2 or not all(parts):
        raise InputError(f"{path} is not there; give a folder, or OWNER/NAME on the Hub.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), revision=revision, token=token, allow_patterns=list(FETCHED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"'{name}' cannot be had from the Hub ({type(error).__name__}: {why}).") from None


def push_to_hub(
    classifier: ZeroShotClassifier, name: str, private: bool | None = None, token: str | None = None
) -> str:
    """Put a classifier on the Hub, as `save_pretrained` writes it.

    Args:
        classifier: What `erpcnet.load` returned.
        name: `OWNER/NAME`; it is made if it is not there.
        private: Whether others may see it; by default as the Hub does it.
        token: Of whoever may write it; by default that of `hf auth login`.

    Returns:
        The address of what was written.

    Raises:
        InputError: The Hub refused it.

    Examples:
        >>> push_to_hub(erpcnet.load("runs/mine"), "somebody/birds", private=True)
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi(token=token)
    folder = Path(tempfile.mkdtemp(prefix="erpcnet-"))
    try:
        save_pretrained(classifier, folder)
        api.create_repo(name, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload an ERPCNet model")
        return str(done.commit_url)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the Hub did not take '{name}' ({type(error).__name__}: {why}).") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
