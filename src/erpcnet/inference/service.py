"""What the page and the REST interface ask a classifier for, whoever carries it; pictures are predicted in batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

from PIL import Image

from erpcnet.data.images import image_pixels, read_image
from erpcnet.errors import InputError
from erpcnet.inference.class_table import ClassTable
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.prediction import Prediction

LARGEST = 64 * 2**20  # bytes of a picture
PIXELS = 60 * 10**6  # of pictures that are decoded at a time, together
BATCH, WAITING = 16, 256  # pictures that run at once, and that may wait
THREADS = 2 * BATCH  # which decode, or wait for an answer
BLOCK = 2**29  # bytes that Pillow takes at once, at most: many small pieces would not go back to the system
LONGEST = 120.0  # seconds that anyone waits
SHOWN_ATTRIBUTES = 8
MOST_CLASSES = 100_000


class BusyError(Exception):
    """There is more to do than may wait."""


@dataclass(frozen=True, eq=False)  # two are never the same, however alike their pictures
class _Job:
    picture: Image.Image
    candidates: str
    found: Future[Prediction]


class PixelBudget:
    """Lets pictures be decoded while all of them together have no more than so many pixels."""

    def __init__(self, pixels: int = PIXELS) -> None:
        self._free, self._most, self._changed, self._closed = pixels, pixels, threading.Condition(), False

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Wait until there is room; a picture that is larger than all of it is alone."""
        wanted = min(pixels, self._most)
        with self._changed:
            there_is = self._changed.wait_for(lambda: self._closed or self._free >= wanted, timeout=LONGEST)
            if self._closed or not there_is:
                raise BusyError
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Service:
    """A classifier that many ask at once.

    Args:
        classifier: What `erpcnet.load` returns.
        examples: Pictures to begin with.

    Examples:
        >>> service = Service(erpcnet.load("runs/quickstart"))
        >>> service.predict(open("some.png", "rb").read())["name"]
    """

    def __init__(self, classifier: ZeroShotClassifier, examples: Sequence[Image.Image] = ()) -> None:
        self._classifier, self._examples = classifier, [_png(picture) for picture in examples]
        self._lock = threading.Lock()  # of those who change the classes; who predicts takes the table as it is then
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING)
        self._budget = PixelBudget()
        Image.core.set_block_size(BLOCK)
        self._room = threading.Semaphore(WAITING)
        self._closed = False
        self._threads = ThreadPoolExecutor(THREADS, "picture")
        self._worker = threading.Thread(target=self._work, name="predict", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """End, soon: what waits is not done any more."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._budget.close()
        self._drop_jobs()
        self._jobs.put(None)
        self._worker.join(timeout=LONGEST)
        self._drop_jobs()  # of pictures that were decoded meanwhile

    def _drop_jobs(self) -> None:
        with suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None and job.found.set_running_or_notify_cancel():
                    job.found.set_exception(BusyError())

    def about(self) -> dict[str, Any]:
        """What the page has to know before anything is dropped on it."""
        table, data = self._classifier.classes, self._classifier.data
        return {
            "variant": self._classifier.network.variant,
            "crops": data.test_crops,
            "classes": [{"name": n, "seen": bool(s)} for n, s in zip(table.names, table.seen, strict=True)],
            "attributes": list(table.attribute_names),
            "examples": len(self._examples),
            "rejects": self._classifier.point.reject is not None,
        }

    def example(self, number: int) -> bytes:
        """One of the pictures to begin with, as PNG."""
        if not 0 <= number < len(self._examples):
            raise InputError(f"there are {len(self._examples)} examples, and no number {number}.")
        return self._examples[number]

    def predict(self, picture: bytes, candidates: str = "all") -> dict[str, Any]:
        """What is in a picture, where the network looked, and the attributes that speak most for the answer.

        Raises:
            InputError: It is no picture, or there are no such candidates.
            BusyError: Too many wait.
            TimeoutError: There was no answer in time.
        """
        if candidates not in ("unseen", "all"):
            raise InputError("candidates are 'unseen' or 'all'.")
        if len(picture) > LARGEST:
            raise InputError(f"a picture has at most {LARGEST // 2**20} MiB.")
        with self._budget.take(image_pixels(BytesIO(picture), "this file")):
            shown = read_image(BytesIO(picture), "this file")
            job = _Job(shown, candidates, Future())
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                raise BusyError from None
            if self._closed and job.found.cancel():  # the worker may have ended before the job was there
                raise BusyError
            try:
                found = job.found.result(timeout=LONGEST)
            except TimeoutError:
                job.found.cancel()  # nobody waits for it any more
                raise
        return {**asdict(found), "evidence": _top_evidence(found), "width": shown.width, "height": shown.height}

    def submit(self, picture: bytes, candidates: str = "all") -> Future[dict[str, Any]]:
        """The same in a thread; what has not begun may be cancelled.

        Raises:
            BusyError: Too many wait.
        """
        if not self._room.acquire(blocking=False):
            raise BusyError
        try:
            found = self._threads.submit(self.predict, picture, candidates)
        except RuntimeError:  # it has ended
            self._room.release()
            raise BusyError from None
        found.add_done_callback(lambda _: self._room.release())
        return found

    def classes(self) -> list[dict[str, Any]]:
        """Every class with its attributes that are not 0."""
        table = self._classifier.classes
        return [_entry(table, row) for row in range(len(table.names))]

    def has_class(self, name: str) -> bool:
        """Whether there is a class of that name."""
        return name in self._classifier.classes

    def one_class(self, name: str) -> dict[str, Any]:
        """The same of one class."""
        return _entry(self._classifier.classes.select([name]), 0)

    def add_class(self, name: str, attributes: Mapping[str, float]) -> dict[str, Any]:
        """Make a class known by its attributes; what there is to know then."""
        with self._lock:
            if len(self._classifier.classes) >= MOST_CLASSES:
                raise InputError(f"there are {MOST_CLASSES} classes already; remove some first.")
            self._classifier.add_classes({name.strip(): attributes})
        return self.about()

    def change_class(self, name: str, attributes: Mapping[str, float]) -> dict[str, Any]:
        """Give a class other attributes; those that are not named stay."""
        with self._lock:
            self._classifier.change_class(name, attributes)
        return self.about()

    def remove_class(self, name: str) -> dict[str, Any]:
        """Forget a class."""
        with self._lock:
            self._classifier.remove_classes([name])
        return self.about()

    def _work(self) -> None:
        """Take what waits, up to a batch of the same candidates, and predict it."""
        ahead: list[_Job] = []
        ending = False
        while not (ending and not ahead):
            while len(ahead) < BATCH and not ending:
                try:
                    job = self._jobs.get(block=not ahead)
                except queue.Empty:
                    break
                ending = job is None
                if job is not None:
                    ahead.append(job)
            same = [job for job in ahead if job.candidates == ahead[0].candidates]
            ahead = [job for job in ahead if job not in same]
            same = [job for job in same if job.found.set_running_or_notify_cancel()]
            if same:
                self._predict(same)
            job, same = None, []  # or the last pictures stay while it waits for others

    def _predict(self, jobs: Sequence[_Job]) -> None:
        try:
            found = self._classifier.predict([job.picture for job in jobs], jobs[0].candidates)
        except Exception as error:  # whoever asked is told, and the worker goes on
            if len(jobs) == 1:
                jobs[0].found.set_exception(error)
                return
            for job in jobs:  # one picture is no matter of the others
                self._predict([job])
        else:
            for job, prediction in zip(jobs, found, strict=True):
                job.found.set_result(prediction)


def _entry(table: ClassTable, row: int) -> dict[str, Any]:
    values = zip(table.attribute_names, table.attributes[row].tolist(), strict=True)
    return {
        "name": table.names[row],
        "seen": bool(table.seen[row]),
        "attributes": {name: value for name, value in values if value},
    }


def _top_evidence(found: Prediction) -> list[dict[str, Any]]:
    """The attributes that speak most for the answer, as parts of what all of those for it add up to."""
    total = sum(part for part in found.evidence.values() if part > 0) or 1.0
    most = sorted(found.evidence.items(), key=lambda item: -item[1])[:SHOWN_ATTRIBUTES]
    return [{"name": name, "share": part / total} for name, part in most if part > 0]


def _png(picture: Image.Image) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
