import pytest

import rondo
from rondo import models


@pytest.mark.parametrize("package", [rondo, models])
def test_everything_a_package_exports_is_there(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
