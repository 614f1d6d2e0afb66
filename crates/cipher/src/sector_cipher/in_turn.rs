//! Several keys that take turns: the low bits of a unit's first sector choose (dm-crypt's `aes:64-...`, loop-AES).

use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// One cipher a key, a power of two of them.
pub(crate) struct KeysInTurn {
    ciphers: Vec<Box<dyn SectorCipher>>,
    unit: DataUnitSize,
    large_iv: bool,
}

impl KeysInTurn {
    /// The IV numbers given to the ciphers grow by 1 a unit with `large_iv`, else by the unit's sectors.
    pub(crate) fn new(ciphers: Vec<Box<dyn SectorCipher>>, unit: DataUnitSize, large_iv: bool) -> Self {
        assert!(ciphers.len().is_power_of_two());
        Self { ciphers, unit, large_iv }
    }

    /// Which key is a unit's.
    fn turn(&self, number: u64) -> usize {
        let sector = if self.large_iv { number.wrapping_mul(self.unit.sectors()) } else { number };
        sector as usize & (self.ciphers.len() - 1)
    }

    fn for_each_run(&self, first: IvNumber, data: InOut<'_>, run: impl Fn(&dyn SectorCipher, IvNumber, InOut<'_>)) {
        let units = data.assert_whole_units(self.unit);
        // Either every unit has the next key, or the units skip whole rounds and all have the same.
        let same_key = self.unit.sectors().is_multiple_of(self.ciphers.len() as u64);
        let run_len = if same_key { units * self.unit.bytes() } else { self.unit.bytes() };
        let step = if self.large_iv { 1 } else { self.unit.sectors() };
        let (mut number, mut left) = (first.0, data);
        while !left.is_empty() {
            let (this, rest) = left.split_at(run_len);
            run(&*self.ciphers[self.turn(number)], IvNumber(number), this);
            number = number.wrapping_add(step);
            left = rest;
        }
    }
}

impl SectorCipher for KeysInTurn {
    fn unit(&self) -> DataUnitSize {
        self.unit
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
