"""What strangers write first, with the subject that the demo's bot must name in its reply.

The first messages of 40 dialogues of the Schema-Guided Dialogue dataset by Google Research
(https://github.com/google-research-datasets/dstc8-schema-guided-dialogue), unchanged: of 60
dialogues of its dev split the first 40 that have at most 80 characters and repeat no earlier one.
The sentences are under CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/), not under
the license of this project. The subjects are ours.
"""

from __future__ import annotations

FIRST_MESSAGES = (
    ("Find me a rental car.", "rental cars"),
    ("I need to start looking for an apartment", "apartments"),
    ("I would like to reserve a bus.", "buses"),
    ("Hi, are there any nice places I can eat at?", "restaurants"),
    ("Can you find me an apartment to live in?", "apartments"),
    ("I would like to make a bus reservation.", "buses"),
    ("I will visit a friend and need to get a rental car for the trip.", "rental cars"),
    ("I need a bus.", "buses"),
    ("Find me a place that serves Coffee & light bites.", "restaurants"),
    ("Can you please help me find a rental car for an upcoming trip?", "rental cars"),
    ("I would like to reserve a bus to go to San Fran leaving at afternoon 1.", "buses"),
    ("I'm looking to take a trip. I need bus tickets", "buses"),
    ("I would like to find a bus.", "buses"),
    ("What's the weather going to be on the 3rd?", "the weather"),
    ("Hi, can you help me find a rental car?", "rental cars"),
    ("i need a bus reservation", "buses"),
    ("can you find me a bus for three people to leave from portland.", "buses"),
    ("I would like to reserve a bus to go to San Francisco on the 11th of this month.", "buses"),
    ("I need to reserve a bus leaving at 12:15 in the afternoon.", "buses"),
    ("one way flight please", "flights"),
    ("I want to check on the weather for the 13th of this month.", "the weather"),
    ("I need to find a therapist.", "therapists and doctors"),
    ("I'd like to search for a rental vehicle, which I require until March 10th.", "rental cars"),
    ("I want a rental car for the 1st of march at 13:30 till the 2nd of march.", "rental cars"),
    ("I need a bus in Sacramento for 10:15 am.", "buses"),
    ("I want a rental car", "rental cars"),
    ("Can you get me bus ticket?", "buses"),
    ("I'd like to check the weather on the 3rd of March.", "the weather"),
    ("Forecast for Vancouver, BC.", "the weather"),
    ("Book me a rental car.", "rental cars"),
    ("I'd like a rental car.", "rental cars"),
    ("Can you find a rental car for me?", "rental cars"),
    ("I need a medium-sized rental car on March 4th.", "rental cars"),
    ("I'd like to book two tickets to an event. I'm free on the 10th of this month.", "events"),
    ("I need a bus next Wednesday leaving morning 9:45.", "buses"),
    ("I like to reserve the bus", "buses"),
    ("I need a bus going to Fresno.", "buses"),
    ("i am looking for a bus for two people from sacramento", "buses"),
    ("I'm looking for a one way flight.", "flights"),
    ("I must verify the weather on the 11th.", "the weather"),
)
