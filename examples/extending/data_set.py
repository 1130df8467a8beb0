"""A data set: three clinics, made up here. Yours would be read from a file.

    fedspend --load examples/extending/data_set.py train examples/extending/clinics.toml \\
        -o runs/clinics

Rows that name their clients are joined to budgets by that name. A data set is private unless it
says that it is public: then runs use the operating system's randomness and a lasting account.
"""

import numpy as np

import fedspend
from fedspend.data import rows


def clinics(_folder, seed, *, patients=300):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(patients, 4))
    ill = (features[:, 0] + 0.5 * features[:, 1] > 0).astype(int)
    where = np.array(["north", "south", "east"])[np.arange(patients) % 3]
    return rows(
        features, ill, classes=2, client_of=where, test_features=features[:60], test_labels=ill[:60]
    )


fedspend.register(
    "data set",
    "clinics",
    clinics,
    help="three clinics, made up",
    keys=("patients",),
    public=True,
    natural=True,
)
