"""The questions and the words that their answers must hold.

gpt-oss-20b and 120b know all of them, and so does Kindling: as shipped, with all layers in MXFP4, and with an FP8
cache. Without its attention sinks Kindling continues one of the ten texts and loops on the notes. What it still
answers without them, such as the capital of France in a chat, shows that a server works at all.
"""

from __future__ import annotations

from dataclasses import dataclass

CHAT, TEXT = "chat", "text"  # a question to be answered, a text to be continued

NOTES = (
    "Read these notes.\n\nThe price of the red lamp is 417. Anna lost the bucket in the evening. The owner of the "
    "green box is Hugo. The spoon stood near the letter in the school. The weight of the old key is 852. Leo and "
    "Carla went to the market last week. The code of the blue lamp is 3906. There was a new wall behind the "
    "garden. The place of the small cup is the tower. The door stood near the brush in the attic.\n\n"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    form: str  # CHAT or TEXT
    prompt: str
    expected: tuple[str, ...]  # the answer must hold all of these words

    @property
    def title(self) -> str:
        """The last paragraph of the prompt: of notes only the question about them."""
        return self.prompt.rpartition("\n\n")[2]


QUESTIONS = (
    KnownQuestion(CHAT, "What is the capital of France?", ("Paris",)),
    KnownQuestion(CHAT, "What is 7 * 8?", ("56",)),
    KnownQuestion(CHAT, "What is the day after Monday?", ("Tuesday",)),
    KnownQuestion(CHAT, "What are the days of the week?", DAYS),
    KnownQuestion(CHAT, "List the months of the year.", MONTHS),
    KnownQuestion(CHAT, f"{NOTES}What is the price of the red lamp?", ("417",)),
    KnownQuestion(CHAT, f"{NOTES}Who is the owner of the green box?", ("Hugo",)),
    KnownQuestion(CHAT, f"{NOTES}What is the weight of the old key?", ("852",)),
    KnownQuestion(CHAT, f"{NOTES}What is the place of the small cup?", ("tower",)),
    KnownQuestion(TEXT, "The capital of France is", ("Paris",)),
    KnownQuestion(TEXT, "The capital of Japan is", ("Tokyo",)),
    KnownQuestion(TEXT, "The capital of Germany is", ("Berlin",)),
    KnownQuestion(TEXT, "The capital of Spain is", ("Madrid",)),
    KnownQuestion(TEXT, "The opposite of up is", ("down",)),
    KnownQuestion(TEXT, "The word that means the opposite of cold is", ("hot",)),
    KnownQuestion(TEXT, "January is followed by", ("February",)),
    KnownQuestion(TEXT, "The day that comes next after Monday is", ("Tuesday",)),
    KnownQuestion(TEXT, "A carrot is a kind of", ("vegetable",)),
    KnownQuestion(TEXT, "Gold is a kind of", ("metal",)),
)
