"""How far a number may be from what it stands for."""

# Of scores, which are means in float32: .7 may be written as .69999999.
SCORE = 1e-6
