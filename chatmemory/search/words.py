"""Words of languages: those that a query drops, and the names of months."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_STOP_WORDS: Final = {
    "english": """
        a about after again all also am an and any are as at be because been before being both
        but by can could d did do does doing don for from had has have having he her hers him
        his how i if in into is it its just ll m me more most my no not of on or our ours out
        over own re s same she should so some such t than that the their theirs them then there
        these they this those to too ve very was we were what when where which while who whom
        whose why will with would you your yours
    """,
    "german": """
        aber als am an auch auf aus bei bin bis da das dass dein dem den der des die dir doch du
        ein eine einem einen einer eines er es für hab habe haben hat hatte ich ihm ihn ihr im
        in ist ja kann mein meine mich mir mit nach nicht noch nur ob oder sein sich sie sind so
        und uns vom von vor war was wenn wer wie wir wird wo zu zum zur über
    """,
    "french": """
        au aux avec ce ces cette dans de des du elle elles en est et il ils j je l la le les
        leur lui ma mais me mes moi mon ne nos notre nous on ou où par pas pour qu que qui sa se
        ses son sont sur ta te tes toi ton tu un une vos votre vous à été être
    """,
    "spanish": """
        a al como con cuando de del donde el ella ellos en es esta este fue ha hay la las le les
        lo los me mi mis no nos o para pero por que qué se si sin son su sus te tu un una y ya
        yo
    """,
    "italian": """
        a ai al alla che chi come con da dal de dei del della di dove e gli ha ho i il in io la
        le lo ma mi mio nel nella non o per più quando quello questa questo se si sono su sua
        suo ti tu un una è
    """,
    "portuguese": """
        a ao aos as com como da das de do dos e ela ele em era essa esse esta este eu foi há
        mais mas me meu minha na nas no nos não o onde os ou para pela pelo por quando que se
        sem ser seu sua são te um uma você é
    """,
    "dutch": """
        aan als bij dan dat de der deze die dit door een en er had heb heeft het hij hoe ik in
        is je kan maar me met mijn naar niet nog of om ook op te tot u uit van voor waar was wat
        we wie wij ze zich zij zijn zo
    """,
}

STOP_WORDS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words.split()) for language, words in _STOP_WORDS.items()
}
"""Words that a query in a language of Snowball drops, if it has other ones."""

MONTHS: Final[Mapping[str, int]] = {
    name: month
    for month, names in enumerate(
        (
            "january jan", "february feb", "march", "april apr", "may", "june jun", "july jul",
            "august aug", "september sep sept", "october oct", "november nov", "december dec",
        ),
        1,
    )
    for name in names.split()
}  # fmt: skip
"""English names of months, and their short forms."""

AMBIGUOUS_MONTHS: Final = frozenset({"march", "may", "jan", "sep"})
"""Names that are also other words."""

_BEFORE_MONTHS = """
    after around before by during early end from in last late mid next of since this till until
"""
BEFORE_MONTHS: Final = frozenset(_BEFORE_MONTHS.split())
"""Words before a name of a month."""
