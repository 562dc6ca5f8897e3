import pytest
from hypothesis import settings
from tests.lab.real_data import RealData

# The first example of a property may compile kernels; how long it takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def load_real(request: pytest.FixtureRequest) -> RealData:
    """Loads real data sets. What was decoded stays in pytest's cache, so that only the first run takes time."""
    return RealData(request.config.cache.mkdir("data-sets"))
