"""`hicache demo`: conversations with a real model, begun in one topology and continued in others through a store.

    command         the command line
    start, scene    what is checked before anything starts, and what every step shares
    conversation    documents and questions, in tokens
    running         an engine, asked one thing at a time
    steps, stored   the order of events: the writer's turns, then each reader's; which objects the store has then
    results, table  what came of it, and how it is shown
    failures        what went wrong, by cause
    servers         a server of its own where no address is given
    signals         whatever tells the demo to end unwinds it alike

`command` alone is imported to show what the demo's flags are; the others need tokenizers.
"""
