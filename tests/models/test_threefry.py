import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from bertjax.models.threefry import fold_in, threefry


def test_the_words_are_those_of_jax():
    words = jax.random.bits(jax.random.key(0), (4, 3, 5), jnp.uint32)
    np.testing.assert_array_equal(threefry(*words), threefry2x32_p.bind(*words))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_key_of_a_number_is_that_of_jax(impl):
    key = jax.random.key(7, impl=impl)
    numbers = jnp.array([[0, 1, 2**31], [3, 2**32 - 1, 5]], jnp.uint32)
    keys = jax.random.key_data(fold_in(key, numbers)).reshape(6, -1)
    for number, data in zip(numbers.ravel(), keys, strict=True):
        np.testing.assert_array_equal(data, jax.random.key_data(jax.random.fold_in(key, number)))
