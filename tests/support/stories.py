"""Generate little stories, in our own words, as training data for a language model.

A story's people, place and things stay the same throughout. ``python tests/support/stories.py >
tests/support/text/stories.txt`` wrote the shipped file; one sentence per line, a blank line after each story.
"""

import random
import sys

STORIES = 800
SEED = 20

NAMES = {"she": "Anna Clara Edda Frida Greta Hanna Ida Johanna Klara Lena Marta Nora Olga Paula Rosa Selma Tilda Vera "
                "Wilma Zoe",
         "he": "Adam Bruno Carl David Emil Felix Gustav Henry Ivan Jakob Konrad Leo Max Nils Oskar Paul Quentin Robert "
               "Simon Theo"}
OBJECT = {"she": "her", "he": "him"}
OWN = {"she": "her", "he": "his"}
# A trade: its people, workplace, product, material, tool, and customers.
TRADES = [
    ("baker", "bakery", "loaves", "flour", "oven", "the children", "warm"),
    ("smith", "forge", "horseshoes", "iron", "hammer", "the farmers", "heavy"),
    ("weaver", "workshop", "blankets", "wool", "loom", "the tailors", "soft"),
    ("potter", "shed", "bowls", "clay", "wheel", "the cooks", "round"),
    ("joiner", "yard", "tables", "oak", "saw", "the neighbours", "solid"),
    ("ropemaker", "barn", "nets", "hemp", "shuttle", "the traders", "long"),
    ("gardener", "greenhouse", "seedlings", "earth", "spade", "the villagers", "green"),
    ("printer", "cellar", "books", "paper", "press", "the students", "thin"),
    ("glazier", "hall", "windows", "glass", "furnace", "the builders", "clear"),
    ("cobbler", "shop", "boots", "leather", "needle", "the soldiers", "strong"),
    ("brewer", "brewery", "ales", "barley", "kettle", "the sailors", "dark"),
    ("clockmaker", "attic", "clocks", "brass", "file", "the merchants", "precise"),
]
PLACES = [("village", "at the foot of the hills", "mill"), ("town", "by the river", "bridge"),
          ("harbour", "on the northern coast", "lighthouse"), ("city", "in the plain", "market"),
          ("valley", "between two mountains", "chapel"), ("island", "far from the shore", "pier")]
SEASONS = [("spring", "the rain", "wet"), ("summer", "the heat", "dry"), ("autumn", "the wind", "cold"),
           ("winter", "the snow", "white")]
ANIMALS = [("dog", "barked"), ("cat", "purred"), ("horse", "neighed"), ("goat", "bleated"), ("goose", "hissed"),
           ("donkey", "brayed")]
YEARS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty"]
TROUBLES = [("broke", "mended", "broken"), ("vanished", "found", "lost"), ("caught fire", "replaced", "burnt")]


def story(choose: random.Random) -> list[str]:
    """Return the sentences of one story."""
    pronoun = choose.choice(list(NAMES))
    name = choose.choice(NAMES[pronoun].split())
    other = choose.choice(NAMES["he" if pronoun == "she" else "she"].split())
    who, where, what, of, tool, they, how = choose.choice(TRADES)
    place, lies, mark = choose.choice(PLACES)
    season, weather, road = choose.choice(SEASONS)
    animal, said = choose.choice(ANIMALS)
    happened, repaired, state = choose.choice(TROUBLES)
    subject, their, them = pronoun.capitalize(), OWN[pronoun], OBJECT[pronoun]
    years = choose.choice(YEARS)
    article = "an" if who[0] in "aeiou" else "a"
    opening = choose.choice([
        f"{name} was {article} {who} in a {place} {lies}.",
        f"In a {place} {lies} there lived {article} {who} whose name was {name}.",
        f"Everybody in the {place} {lies} knew {name} the {who}."])
    middle = [
        choose.choice([f"For {years} years {pronoun} had made {what} of {of}.",
                       f"{subject} made {what} of {of}, and had done so for {years} years."]),
        choose.choice([f"{subject} worked in a small {where} near the {mark}.",
                       f"The {where} of the {who} stood near the {mark}."]),
        choose.choice([f"The {what} that {pronoun} made were {how}, and {they} came for them every week.",
                       f"Every week {they} came to the {where}, because the {what} were {how}."]),
        choose.choice([f"A {animal} slept beside the {tool} and {said} when somebody came in.",
                       f"When somebody opened the door of the {where}, the {animal} {said}."]),
    ]
    choose.shuffle(middle)
    trouble = [
        choose.choice([f"Then {season} came, and with it {weather}.", f"One {season} {weather} did not end."]),
        choose.choice([f"The road to the {mark} was {road}, and no {of} arrived.",
                       f"No {of} arrived any more, because the road was {road}."]),
        choose.choice([f"In the same week the {tool} {happened}.", f"To make it worse, the {tool} {happened}."]),
        choose.choice([f"Without {of} and with a {state} {tool} there could be no {what}.",
                       f"Nobody can make {what} with a {state} {tool}."]),
        choose.choice([f"{they.capitalize()} waited before the {where} and asked for {what}.",
                       f"{they.capitalize()} asked {them} when there would be {what} again."]),
    ]
    help_comes = [
        choose.choice([f"{name} went to {other}, who lived behind the {mark}.",
                       f"Behind the {mark} lived {other}, and {name} asked for help."]),
        choose.choice([f"{other} brought {of} on the back of a {animal}.",
                       f"{other} had {of} enough, and gave {them} half of it."]),
        choose.choice([f"Together they {repaired} the {tool} in one night.",
                       f"The {tool} was {repaired} before the sun rose."]),
    ]
    ending = choose.choice([
        f"In the morning there was {of} in the {where} again, and the {what} were as {how} as ever.",
        f"Since that {season} {other} gets the first {what} of the week.",
        f"The {who} never forgot who had helped {them}, and the {animal} {said} whenever {other} came.",
        f"So {they} got their {what}, and {name} went back to {their} {tool}."])
    return [opening, *middle[:choose.randint(2, 4)], *trouble[:choose.randint(3, 5)], *help_comes, ending]


def text() -> str:
    """Return all stories."""
    choose = random.Random(SEED)
    return "\n".join("".join(sentence + "\n" for sentence in story(choose)) for _ in range(STORIES))


if __name__ == "__main__":
    sys.stdout.write(text())
