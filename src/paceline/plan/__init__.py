"""What will training take: which memory, which time, which money? Predicted from numbers, before anything is rented.

`model` says what is trained, `setting` how and on what; `columns` puts many such cases side by side, and `memory` and
`step` predict them by formula. `rows` reads published measurements and `report` holds the predictions against them.
"""
