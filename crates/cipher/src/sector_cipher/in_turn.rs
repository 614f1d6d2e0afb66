//! Several keys, one of which is selected by the low bits of a unit's first sector (dm-crypt's `aes:64-...`, loop-AES).

use crate::{DataUnitSize, InOut, IvNumber, IvNumbering, SectorCipher};

/// One cipher for each key.
pub(crate) struct KeysInTurn {
    ciphers: Vec<Box<dyn SectorCipher>>,
    unit: DataUnitSize,
    numbering: IvNumbering,
}

impl KeysInTurn {
    /// Combines ciphers, whose number is a power of two.
    pub(crate) fn new(ciphers: Vec<Box<dyn SectorCipher>>, unit: DataUnitSize, numbering: IvNumbering) -> Self {
        assert!(ciphers.len().is_power_of_two());
        Self { ciphers, unit, numbering }
    }

    /// Returns the index of the key of a unit.
    fn key_of(&self, number: u64) -> usize {
        let sector = match self.numbering {
            IvNumbering::DataUnits => number.wrapping_mul(self.unit.sectors()),
            IvNumbering::Sectors => number,
        };
        sector as usize & (self.ciphers.len() - 1)
    }

    fn for_each_run(&self, first: IvNumber, data: InOut<'_>, run: impl Fn(&dyn SectorCipher, IvNumber, InOut<'_>)) {
        let units = data.assert_whole_units(self.unit);
        // Either every unit has the next key, or units are multiples of that many sectors and all have the same key.
        let same_key = self.unit.sectors().is_multiple_of(self.ciphers.len() as u64);
        let run_len = if same_key { units * self.unit.bytes() } else { self.unit.bytes() };
        let step = self.numbering.step(self.unit);
        let (mut number, mut left) = (first.0, data);
        while !left.is_empty() {
            let (this, rest) = left.split_at(run_len);
            run(&*self.ciphers[self.key_of(number)], IvNumber(number), this);
            number = number.wrapping_add(step);
            left = rest;
        }
    }
}

impl SectorCipher for KeysInTurn {
    fn unit(&self) -> DataUnitSize {
        self.unit
    }

    fn step(&self) -> u64 {
        self.numbering.step(self.unit)
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.for_each_run(first, data, |cipher, number, run| cipher.encrypt(number, run));
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.for_each_run(first, data, |cipher, number, run| cipher.decrypt(number, run));
    }

    fn kernel(&self) -> &'static str {
        self.ciphers[0].kernel()
    }
}
