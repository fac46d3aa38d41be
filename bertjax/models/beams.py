"""Where the beams of a search come from: what a decoder needs to know to go on by one token."""

from typing import NamedTuple

from jaxtyping import Array


class Beams(NamedTuple):
    """The histories of K hypotheses for each of B rows, at one step of a search over at most T steps."""

    index: Array  # type: ignore[assignment]  # [] int: the step, from 0: how many tokens were fed before
    parents: Array  # [B, K] int: which beam of the step before each one goes on from; its own number at step 0
    lineage: Array  # [B, K, T] int: for each step up to this one, the beam in whose place its token was fed
