//! XTS and CBC over any block cipher: the default for a cipher, or a processor, that has no kernel.
//!
//! Units go one by one; inside a unit as many blocks as the cipher takes at a time. Works in place only: a copy comes first
//! where source and destination differ.

use crate::aes::Block;
use crate::iv::IvGenerator;
use crate::sector_cipher::assert_whole_units;
use crate::{DataUnitSize, InOut, IvNumber, SectorCipher};

/// A block cipher of 16-byte blocks under one key.
pub(crate) trait BlockCipher: Send + Sync {
    /// Encrypts each block for itself.
    fn encrypt(&self, blocks: &mut [Block]);
    /// Decrypts each block for itself.
    fn decrypt(&self, blocks: &mut [Block]);
}

/// What all modes know of units.
pub(crate) struct UnitInfo {
    pub(crate) unit: DataUnitSize,
    pub(crate) ivs: IvGenerator,
    /// The name of the kernel that the block cipher is.
    pub(crate) kernel: &'static str,
}

impl UnitInfo {
    /// Calls `each` with the IV and the blocks of every unit. `prepare` sees the IVs of many units at a time.
    fn for_each(
        &self,
        first: IvNumber,
        data: InOut<'_>,
        prepare: impl Fn(&mut [Block]),
        each: impl Fn(Block, &mut [Block]),
    ) {
        assert_whole_units(self.unit, &data);
        let mut number = first.0;
        for batch in data.into_in_place().chunks_mut(self.unit.bytes() * IvGenerator::MAX_BATCH) {
            let mut ivs = [[0; 16]; IvGenerator::MAX_BATCH];
            let ivs = &mut ivs[..batch.len() / self.unit.bytes()];
            self.ivs.fill(number, ivs);
            number = self.ivs.advance(number, ivs.len());
            prepare(ivs);
            for (unit, iv) in batch.chunks_exact_mut(self.unit.bytes()).zip(ivs) {
                each(*iv, unit.as_chunks_mut::<16>().0);
            }
        }
    }
}

/// XTS over `C`.
pub(crate) struct AnyXts<C> {
    data: C,
    tweak: C,
    info: UnitInfo,
}

impl<C: BlockCipher> AnyXts<C> {
    pub(crate) fn new(data: C, tweak: C, info: UnitInfo) -> Self {
        Self { data, tweak, info }
    }

    fn run(&self, first: IvNumber, data: InOut<'_>, cipher: impl Fn(&C, &mut [Block])) {
        let prepare = |ivs: &mut [Block]| self.tweak.encrypt(ivs);
        self.info.for_each(first, data, prepare, |first_tweak, blocks| {
            let mut tweak = u128::from_le_bytes(first_tweak);
            let mut tweaks = [0u128; 32];
            for blocks in blocks.chunks_mut(tweaks.len()) {
                for place in &mut tweaks {
                    *place = tweak;
                    tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
                }
                xor(blocks, &tweaks);
                cipher(&self.data, blocks);
                xor(blocks, &tweaks);
            }
        });
    }
}

fn xor(blocks: &mut [Block], with: &[u128]) {
    for (block, with) in blocks.iter_mut().zip(with) {
        *block = (u128::from_le_bytes(*block) ^ with).to_le_bytes();
    }
}

impl<C: BlockCipher> SectorCipher for AnyXts<C> {
    fn unit(&self) -> DataUnitSize {
        self.info.unit
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.run(first, data, C::encrypt);
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.run(first, data, C::decrypt);
    }

    fn kernel(&self) -> &'static str {
        self.info.kernel
    }
}

/// CBC over `C`.
pub(crate) struct AnyCbc<C> {
    cipher: C,
    info: UnitInfo,
}

impl<C: BlockCipher> AnyCbc<C> {
    pub(crate) fn new(cipher: C, info: UnitInfo) -> Self {
        Self { cipher, info }
    }
}

impl<C: BlockCipher> SectorCipher for AnyCbc<C> {
    fn unit(&self) -> DataUnitSize {
        self.info.unit
    }

    fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.info.for_each(
            first,
            data,
            |_| {},
            |iv, blocks| {
                let mut chain = u128::from_le_bytes(iv);
                for block in blocks.chunks_mut(1) {
                    xor(block, &[chain]);
                    self.cipher.encrypt(block);
                    chain = u128::from_le_bytes(block[0]);
                }
            },
        );
    }

    fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
        self.info.for_each(
            first,
            data,
            |_| {},
            |iv, blocks| {
                let mut chain = [0u128; 33];
                chain[0] = u128::from_le_bytes(iv);
                for blocks in blocks.chunks_mut(32) {
                    for (place, block) in chain[1..].iter_mut().zip(&*blocks) {
                        *place = u128::from_le_bytes(*block);
                    }
                    self.cipher.decrypt(blocks);
                    xor(blocks, &chain);
                    chain[0] = chain[32];
                }
            },
        );
    }

    fn kernel(&self) -> &'static str {
        self.info.kernel
    }
}
