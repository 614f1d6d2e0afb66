//! `cipher_null`: nothing but the copy. For comparison and tests; never for keyslots.

use crate::sector_cipher::assert_whole_units;
use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// Leaves data as it is.
pub(crate) struct Null {
    pub(crate) unit: DataUnitSize,
}

impl SectorCipher for Null {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn encrypt(&self, _: IvNumber, data: InOut<'_>) {
        assert_whole_units(self.unit, &data);
        data.into_in_place();
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.encrypt(first, data);
    }

    fn kernel(&self) -> &'static str {
        "none"
    }
}
