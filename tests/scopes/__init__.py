"""Does an answer ever cross a scope? Random sequences of requests, purges, expiries and changed settings against the
real gateway (all of it but the sockets), judged by rules that know nothing of how it works.

    world.py    who there is, and which endpoints
    steps.py    what can happen: requests and how they are spelled, purges, waiting, changed settings
    questions.py  what is asked, in which wordings, and what lies near what
    plan.py     what happens: a seed gives a world and a list of steps
    harness.py  the gateway, its clock and its backend, whose every answer names whom it was made for
    log.py      what has happened, in its order
    model.py    the rules (DESIGN 4 to 6 in other words), with nothing imported from what they judge
    leaks.py    leaks to plant, all of which must be found; leaks_like.py: those of the semantic tier
    documents.py  the rules for what is made from documents; documents_world, _plan, _shelves, _telling, _harness, _run:
                sequences in which documents, and who may see them, change meanwhile
    run.py      many sequences, what they counted, and the shortest way to what was found
"""
