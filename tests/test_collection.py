import gzip

import pytest


@pytest.mark.parametrize("content", [gzip.compress(b"smiles\nC\n")])
def test_a_test_is_not_named_by_the_second_in_which_it_was_collected(content, request):
    """Workers collect one after another, and refuse to begin where they find different tests."""
    assert request.node.name.endswith(f"[compressed-{len(content)}]")
