"""The paper's statements on tabular problems, where every quantity is exact.

mdp.py        problems (random, gridworld, chain) and their values by linear solves
policies.py   the closed form π*_λ, its normaliser, g(λ), and distances between policies
duality.py    the constrained optimum, once by its dual and once by an interior-point method
bounds.py     the terms of the two lower bounds
statements/   each statement as a function: by how much it is violated, how tight it is
catalogue.py  the list of statements: as printed, as corrected, what they assume
counterexamples.py  the smallest problem on which a printed statement fails
check.py      all of them over many problems

Float64 and numpy alone; every array has a leading axis of problems.
"""
