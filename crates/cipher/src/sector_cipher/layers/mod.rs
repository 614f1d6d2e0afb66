//! IV modes that depend on the data or change it, as layers around a sector cipher.
//!
//! A layer is a sector cipher over another one, which it calls once for each call. Layers work in place; with a
//! separate destination they copy first, so the source stays unchanged.

mod elephant;
mod lmk;
mod tcw;

pub(super) use elephant::Elephant;
pub(super) use lmk::Lmk;
pub(super) use tcw::Tcw;

use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// A change to single data units, which may depend on the unit's IV number.
pub(crate) trait Layer: Send + Sync {
    /// Whether the layer changes plaintext, before encryption and after decryption. Otherwise it changes ciphertext.
    const AROUND_PLAINTEXT: bool;
    /// Changes a unit on encryption.
    fn apply(&self, number: u64, unit: &mut [u8]);
    /// Undoes [`Layer::apply`].
    fn undo(&self, number: u64, unit: &mut [u8]);
}

/// A sector cipher with a layer around its plaintext or its ciphertext.
pub(crate) struct Layered<L> {
    layer: L,
    cipher: Box<dyn SectorCipher>,
    /// Difference of the IV numbers of consecutive units.
    step: u64,
}

impl<L: Layer> Layered<L> {
    pub(crate) fn new(layer: L, cipher: Box<dyn SectorCipher>, step: u64) -> Self {
        Self { layer, cipher, step }
    }

    fn each(&self, first: IvNumber, data: &mut [u8], change: impl Fn(u64, &mut [u8])) {
        let mut number = first.0;
        for unit in data.chunks_exact_mut(self.unit().bytes()) {
            change(number, unit);
            number = number.wrapping_add(self.step);
        }
    }
}

impl<L: Layer> SectorCipher for Layered<L> {
    fn unit(&self) -> DataUnitSize {
        self.cipher.unit()
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        data.assert_whole_units(self.unit());
        let data = data.into_in_place();
        if L::AROUND_PLAINTEXT {
            self.each(first, data, |number, unit| self.layer.apply(number, unit));
        }
        self.cipher.encrypt(first, InOut::InPlace(data));
        if !L::AROUND_PLAINTEXT {
            self.each(first, data, |number, unit| self.layer.apply(number, unit));
        }
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        data.assert_whole_units(self.unit());
        let data = data.into_in_place();
        if !L::AROUND_PLAINTEXT {
            self.each(first, data, |number, unit| self.layer.undo(number, unit));
        }
        self.cipher.decrypt(first, InOut::InPlace(data));
        if L::AROUND_PLAINTEXT {
            self.each(first, data, |number, unit| self.layer.undo(number, unit));
        }
    }

    fn min_encrypted_run(&self) -> usize {
        self.cipher.min_encrypted_run()
    }

    fn min_decrypted_run(&self) -> usize {
        self.cipher.min_decrypted_run()
    }

    fn kernel(&self) -> &'static str {
        self.cipher.kernel()
    }
}
