"""What the stages say of the rows that they could not use."""

import pyarrow as pa
import pytest

from wegl_dask.tasks import _reasons


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (
            ["RDKit cannot parse the SMILES 'C1': unclosed ring", "RDKit cannot parse the SMILES 'C(': no SMILES"],
            "RDKit cannot parse the SMILES …",
        ),
        (["node 3 has the category -1", "node 12 has the category 7"], "node … has the category …"),
        (["column pIC50_2 holds 'x'; a target holds a number"] * 2, "column pIC50_2 holds …; a target holds a number"),
    ],
)
def test_reasons_of_one_kind_are_counted_together(reasons, kind):
    assert _reasons(pa.table({"reason": reasons})) == {kind: 2}
