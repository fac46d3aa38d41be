"""The generator Threefry-2x32 of 20 rounds (Salmon et al. 2011), with the bits of `jax.random`.

On CPUs, `jax.random` computes its five groups of rounds in a loop, with rotations that are read from arrays. The loop
takes XLA two seconds to compile for each shape of three or more axes. Rotations that are constants take a fifth of it,
and a third less time to run.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key, UInt32

from bertjax import meshes

Word = UInt32[Array, "..."]
_EVEN = (13, 15, 26, 6)  # rotations of groups 0, 2 and 4
_ODD = (17, 29, 16, 24)  # rotations of groups 1 and 3
_PARITY = 0x1BD11BDA


def fold_in(key: Key[Array, ""], numbers: UInt32[Array, "*shape"]) -> Key[Array, "*shape"]:
    """Returns the key of each number, that of `jax.random.fold_in`."""
    if meshes.platform() != "cpu" or jax.random.key_impl(key) != "threefry2x32":
        return jnp.vectorize(functools.partial(jax.random.fold_in, key))(numbers)
    first, second = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.stack(threefry(first, second, jnp.zeros_like(numbers), numbers), axis=-1))


@jax.jit
def threefry(first: Word, second: Word, x: Word, y: Word) -> tuple[Word, Word]:
    """Returns the two random words of each counter.

    A loop keeps XLA from computing the words anew in each operation that reads them.

    Args:
      first: the first word of the key.
      second: the second word of the key.
      x: the first words of the counters, in the shape of the results.
      y: their second words.
    """
    third = first ^ second ^ jnp.uint32(_PARITY)
    x, y = _rounds(x + first, y + second, _EVEN)

    def two_groups(turn: Array, carry: tuple[Word, ...]) -> tuple[Word, ...]:
        x, y, first, second, third = carry
        group = 2 * turn.astype(jnp.uint32)
        x, y = _rounds(x + second, y + third + (group + 1), _ODD)
        x, y = _rounds(x + third, y + first + (group + 2), _EVEN)
        return x, y, third, first, second

    x, y, first, second, third = lax.fori_loop(0, 2, two_groups, (x, y, first, second, third))
    return x + second, y + third + jnp.uint32(5)


def _rounds(x: Word, y: Word, rotations: tuple[int, ...]) -> tuple[Word, Word]:
    for rotation in rotations:
        x = x + y
        y = x ^ (y << rotation | y >> (32 - rotation))
    return x, y
