import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    if "BERTJAX_DATA" not in os.environ:
        pytest.skip("BERTJAX_DATA, the folder of real data sets, is unset")
    return Path(os.environ["BERTJAX_DATA"])
