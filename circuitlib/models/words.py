"""The book's own word lists. Every word is one token of the shipped tokenizers (tested)."""

from __future__ import annotations

# Argument and method names: written with a leading space, " size".
NAMES = tuple(
    """
    size path name index value count limit depth width height color label title image model layer
    token batch seed scale shift ratio angle speed mass force power level state mode flag mask key
    item node edge graph tree root leaf parent child queue stack table row cell field record schema
    query filter order group event time date year month hour zone user owner email phone city
    country street price cost tax rate amount total margin budget offset start stop step range
    window frame pixel point line shape curve area volume weight bias score error loss metric target
    source input output buffer stream file folder host port route page link body header cookie
    """.split()
)

# A tenth of the names never appears in a docstring while a model trains (tests measure accuracy on them).
HELD_OUT_NAMES = NAMES[4::10]

# The word after the opening quotes, with no space before it: "load".
VERBS = tuple(
    """
    load save read write build make send get find move copy merge split sort check count parse draw
    print open close start stop reset update create delete convert compute return apply wrap select
    """.split()
)

# Description words: written with a leading space, " large". None is a name (tested).
NOUNS = tuple(
    """
    the and all for from with into each new old first last given other some any only more main base
    small large long short empty valid unique local global public simple common related current
    river house garden table window summer winter morning market kitchen village forest island
    mountain ocean bridge castle temple church school library museum theatre hospital factory
    engine machine paper letter story music picture language science history culture nature animal
    horse dog cat bird fish flower apple bread water coffee sugar silver golden copper iron stone
    glass wood cotton leather people family friend doctor teacher student artist writer driver
    """.split()
)
NOUNS = tuple(word for word in NOUNS if word not in NAMES)

# For stories in which one person gives something to another, all written with a leading space: " Mary", " bakery", " book".
PEOPLE = tuple(
    """
    Mary John Anna Paul Laura Mark Sarah David Emma James Alice Peter Julia Robert Helen Simon Kate
    Daniel Rachel Thomas Susan Michael Claire George Lucy Andrew Jane Martin Amy Kevin Lisa Brian
    Maria Steven Diana Eric Emily Adam Nina Oliver Sofia Henry Grace Frank Rose Jack Ruth Scott
    Karen Tony Linda Chris Nancy Joseph Sally Richard Ellen Charles Judy Edward Carol William Ann
    Patrick Laurie Victor Monica Ryan Vera Jason Jenny Aaron Tina Keith Megan Bruce Holly Roger Amber
    Leon Fiona Alan Irene Philip
    """.split()
)

PLACES = tuple(
    """
    bank market station library museum office school park garden kitchen hotel harbor bridge church
    theater farm factory hospital studio beach castle forest village tower mall gym pool zoo court
    lake restaurant store
    """.split()
)

# Each goes with the article "a".
THINGS = tuple(
    """
    book letter ring key lamp camera ticket watch basket bottle flower map picture hat coat knife
    ball box cup drum guitar mirror pen pencil phone plate radio ribbon rope scarf toy vase candle
    coin card kite
    """.split()
)

# Things that last for years: "war".
EVENTS = tuple(
    """
    war siege reign treaty alliance dispute campaign expedition voyage project study famine drought
    plague revolt rebellion strike trial crisis conflict marriage friendship journey mission
    occupation partnership program construction migration feud truce contest debate boom exile
    regime tenure dynasty tradition search
    """.split()
)
