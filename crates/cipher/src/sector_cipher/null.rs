//! `cipher_null`: copies the data. For comparisons and tests; never for keyslots.

use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// The null cipher.
pub(crate) struct Null {
    pub(crate) unit: DataUnitSize,
    pub(crate) step: u64,
}

impl SectorCipher for Null {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn encrypt(&self, _: IvNumber, data: InOut<'_>) {
        data.assert_whole_units(self.unit);
        data.into_in_place();
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.encrypt(first, data);
    }

    fn kernel(&self) -> &'static str {
        "none"
    }
}
