"""What a classifier finds in a picture: the answer, how sure it is, and where it looked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from erpcnet.errors import InputError
from erpcnet.inference.pictures import Picture
from erpcnet.utils.files import as_path

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels of the picture


@dataclass(frozen=True)
class Locality:
    """One selected window of a picture.

    Attributes:
        box: The window, in pixels of the picture.
        answer: The class that was answered after it.
        confidence: The calibrated probability of that class.
        reward: beta (p_joint + p_global) of the best class, which ends the search once it reaches sigma.

    Examples:
        >>> for locality in model.predict("some.png").localities:
        ...     print(locality.box, locality.answer, f"{locality.confidence:.0%}")
    """

    box: Box
    answer: str
    confidence: float
    reward: float


@dataclass(frozen=True, repr=False)
class Prediction:
    """What is in a picture.

    With test-time augmentation everything is of all crops together, after so many steps in each; the localities are
    those of the centre crop.

    Attributes:
        name: The class.
        confidence: Its calibrated probability among the candidates: temperature and delta are of the validation
            classes, and it means the same after the glance and after every step.
        top: The five likeliest classes with their probabilities, this one first.
        localities: The windows that were selected, in order.
        glance_answer: What was answered after the glance.
        glance_confidence: The probability of that.
        attributes: What was predicted at the end, by name: a_j, or a_g where the glance alone answers.
        evidence: What each attribute adds to the logit of the answer, before the class bias and delta: those of a_g
            and a_j together, as both answer.
        crops: How many crops of the picture were shown.
        object_crop: The part of the picture that the network found worth a crop of its own, with test-time
            augmentation.
        zoom: How many times finer than the glance the windows were read.
        centre_crop: The part of the picture that the network saw.
        among: How many classes it was chosen from.
        path: The file that was predicted, if it was one.
        rejected: Whether so little fits that the picture seems to be of none of them; None where no threshold was
            chosen in training.

    Examples:
        >>> prediction = model.predict("some.png")
        >>> prediction.name, prediction.confidence, prediction.steps
        >>> prediction.plot(out="some-answer.png")
    """

    name: str
    confidence: float
    localities: tuple[Locality, ...]
    glance_answer: str
    glance_confidence: float
    attributes: dict[str, float]
    evidence: dict[str, float]
    top: tuple[tuple[str, float], ...] = ()
    crops: int = 1
    object_crop: Box | None = None
    zoom: int = 1
    centre_crop: Box | None = None
    among: int = 0
    rejected: bool | None = None
    path: str | None = None

    @property
    def steps(self) -> int:
        """How many localities were selected."""
        return len(self.localities)

    def __repr__(self) -> str:
        others = ", ".join(f"{name} {chance:.0%}" for name, chance in self.top[1:3])
        taken = "1 step" if self.steps == 1 else f"{self.steps} steps"
        then = f"; then {others}" if others else ""
        doubt = "; perhaps none of these" if self.rejected else ""
        among = "1 class" if self.among == 1 else f"{self.among} classes"
        return f"<Prediction {self.name} {self.confidence:.0%} among {among} after {taken}{then}{doubt}>"

    def plot(self, picture: Picture | None = None, out: str | Path | None = None) -> Image.Image:
        """The picture with the localities that were selected, numbered, and the answers on the way.

        Args:
            picture: What was predicted; by default it is opened again, if it was a file.
            out: A PNG file to write it to.

        Returns:
            The drawing, which notebooks show.
        """
        from erpcnet.inference.drawing import render_localities  # matplotlib is slow to import

        if picture is None:
            if self.path is None:
                raise InputError("this prediction is not of a file; give plot the picture that was predicted.")
            picture = self.path
        drawn = render_localities([picture], [self], [None])
        if out is not None:
            drawn.save(as_path(out, "the drawing"), "PNG")
        return drawn
