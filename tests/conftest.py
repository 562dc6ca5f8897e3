import pytest
from tests.lab.real_data import RealData


@pytest.fixture(scope="session")
def load_real(request: pytest.FixtureRequest) -> RealData:
    """Loads real data sets. What was decoded stays in pytest's cache, so that only the first run takes time."""
    return RealData(request.config.cache.mkdir("data-sets"))
