//! The compression functions of SHA-256 and SHA-512 (FIPS 180-4, section 6). They differ in the length of words, in
//! rotations and constants, and in the number of rounds.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::{Job, Vector, Word};

/// Words of a hash of the family.
pub(crate) trait Sha2Word: Word {
    /// A constant for each round: sixteen rounds use up the words of a block.
    const ROUND_CONSTANTS: &[[Self; 16]];

    // The functions of FIPS 180-4, sections 4.1.2 and 4.1.3: two of a round, and two of the schedule.
    fn sum0<V: Vector<N, Word = Self>, const N: usize>(a: V) -> V;
    fn sum1<V: Vector<N, Word = Self>, const N: usize>(e: V) -> V;
    fn small0<V: Vector<N, Word = Self>, const N: usize>(w15: V) -> V;
    fn small1<V: Vector<N, Word = Self>, const N: usize>(w2: V) -> V;
}

impl Sha2Word for u32 {
    const ROUND_CONSTANTS: &[[Self; 16]] = ROUND_CONSTANTS_32.as_flattened().as_chunks().0;

    #[inline(always)]
    fn sum0<V: Vector<N, Word = Self>, const N: usize>(a: V) -> V {
        V::xor(a.rotate::<2, 30>(), a.rotate::<13, 19>(), a.rotate::<22, 10>())
    }

    #[inline(always)]
    fn sum1<V: Vector<N, Word = Self>, const N: usize>(e: V) -> V {
        V::xor(e.rotate::<6, 26>(), e.rotate::<11, 21>(), e.rotate::<25, 7>())
    }

    #[inline(always)]
    fn small0<V: Vector<N, Word = Self>, const N: usize>(w15: V) -> V {
        V::xor(w15.rotate::<7, 25>(), w15.rotate::<18, 14>(), w15.shift::<3>())
    }

    #[inline(always)]
    fn small1<V: Vector<N, Word = Self>, const N: usize>(w2: V) -> V {
        V::xor(w2.rotate::<17, 15>(), w2.rotate::<19, 13>(), w2.shift::<10>())
    }
}

impl Sha2Word for u64 {
    const ROUND_CONSTANTS: &[[Self; 16]] = &ROUND_CONSTANTS_64;

    #[inline(always)]
    fn sum0<V: Vector<N, Word = Self>, const N: usize>(a: V) -> V {
        V::xor(a.rotate::<28, 36>(), a.rotate::<34, 30>(), a.rotate::<39, 25>())
    }

    #[inline(always)]
    fn sum1<V: Vector<N, Word = Self>, const N: usize>(e: V) -> V {
        V::xor(e.rotate::<14, 50>(), e.rotate::<18, 46>(), e.rotate::<41, 23>())
    }

    #[inline(always)]
    fn small0<V: Vector<N, Word = Self>, const N: usize>(w15: V) -> V {
        V::xor(w15.rotate::<1, 63>(), w15.rotate::<8, 56>(), w15.shift::<7>())
    }

    #[inline(always)]
    fn small1<V: Vector<N, Word = Self>, const N: usize>(w2: V) -> V {
        V::xor(w2.rotate::<19, 45>(), w2.rotate::<61, 3>(), w2.shift::<6>())
    }
}

/// Round constants of SHA-256 (FIPS 180-4, section 4.2.2).
#[rustfmt::skip]
pub(crate) const ROUND_CONSTANTS_32: [[u32; 4]; 16] = [
    [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5], [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
    [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3], [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
    [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc], [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
    [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7], [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
    [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13], [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
    [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3], [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
    [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5], [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
    [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208], [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
];

/// Round constants of SHA-512 (FIPS 180-4, section 4.2.3).
#[rustfmt::skip]
const ROUND_CONSTANTS_64: [[u64; 16]; 5] = [
    [
        0x428a_2f98_d728_ae22, 0x7137_4491_23ef_65cd, 0xb5c0_fbcf_ec4d_3b2f, 0xe9b5_dba5_8189_dbbc,
        0x3956_c25b_f348_b538, 0x59f1_11f1_b605_d019, 0x923f_82a4_af19_4f9b, 0xab1c_5ed5_da6d_8118,
        0xd807_aa98_a303_0242, 0x1283_5b01_4570_6fbe, 0x2431_85be_4ee4_b28c, 0x550c_7dc3_d5ff_b4e2,
        0x72be_5d74_f27b_896f, 0x80de_b1fe_3b16_96b1, 0x9bdc_06a7_25c7_1235, 0xc19b_f174_cf69_2694,
    ],
    [
        0xe49b_69c1_9ef1_4ad2, 0xefbe_4786_384f_25e3, 0x0fc1_9dc6_8b8c_d5b5, 0x240c_a1cc_77ac_9c65,
        0x2de9_2c6f_592b_0275, 0x4a74_84aa_6ea6_e483, 0x5cb0_a9dc_bd41_fbd4, 0x76f9_88da_8311_53b5,
        0x983e_5152_ee66_dfab, 0xa831_c66d_2db4_3210, 0xb003_27c8_98fb_213f, 0xbf59_7fc7_beef_0ee4,
        0xc6e0_0bf3_3da8_8fc2, 0xd5a7_9147_930a_a725, 0x06ca_6351_e003_826f, 0x1429_2967_0a0e_6e70,
    ],
    [
        0x27b7_0a85_46d2_2ffc, 0x2e1b_2138_5c26_c926, 0x4d2c_6dfc_5ac4_2aed, 0x5338_0d13_9d95_b3df,
        0x650a_7354_8baf_63de, 0x766a_0abb_3c77_b2a8, 0x81c2_c92e_47ed_aee6, 0x9272_2c85_1482_353b,
        0xa2bf_e8a1_4cf1_0364, 0xa81a_664b_bc42_3001, 0xc24b_8b70_d0f8_9791, 0xc76c_51a3_0654_be30,
        0xd192_e819_d6ef_5218, 0xd699_0624_5565_a910, 0xf40e_3585_5771_202a, 0x106a_a070_32bb_d1b8,
    ],
    [
        0x19a4_c116_b8d2_d0c8, 0x1e37_6c08_5141_ab53, 0x2748_774c_df8e_eb99, 0x34b0_bcb5_e19b_48a8,
        0x391c_0cb3_c5c9_5a63, 0x4ed8_aa4a_e341_8acb, 0x5b9c_ca4f_7763_e373, 0x682e_6ff3_d6b2_b8a3,
        0x748f_82ee_5def_b2fc, 0x78a5_636f_4317_2f60, 0x84c8_7814_a1f0_ab72, 0x8cc7_0208_1a64_39ec,
        0x90be_fffa_2363_1e28, 0xa450_6ceb_de82_bde9, 0xbef9_a3f7_b2c6_7915, 0xc671_78f2_e372_532b,
    ],
    [
        0xca27_3ece_ea26_619c, 0xd186_b8c7_21c0_c207, 0xeada_7dd6_cde0_eb1e, 0xf57d_4f7f_ee6e_d178,
        0x06f0_67aa_7217_6fba, 0x0a63_7dc5_a2c8_98a6, 0x113f_9804_bef9_0dae, 0x1b71_0b35_131c_471b,
        0x28db_77f5_2304_7d84, 0x32ca_ab7b_40c7_2493, 0x3c9e_be0a_15c9_bebc, 0x431d_67c4_9c10_0d4c,
        0x4cc5_d4be_cb3e_42b6, 0x597f_299c_fc65_7e2a, 0x5fcb_6fab_3ad6_faec, 0x6c44_198c_4a47_5817,
    ],
];

/// Replaces word `AT` of the last sixteen of the schedule by that of sixteen rounds later.
#[inline(always)]
fn extend_schedule<V: Vector<N, Word: Sha2Word>, const N: usize, const AT: usize>(schedule: &mut [V; 16]) {
    let (w15, w2) = (schedule[(AT + 1) % 16], schedule[(AT + 14) % 16]);
    let sum = schedule[AT].add(schedule[(AT + 9) % 16]);
    schedule[AT] = sum.add(V::Word::small0(w15)).add(V::Word::small1(w2));
}

/// Runs round `AT` of sixteen. Word `n` of the state, a to h, is at `n - AT` of the array.
#[inline(always)]
fn round<V: Vector<N, Word: Sha2Word>, const N: usize, const AT: usize>(state: &mut [V; 8], scheduled: V, constant: V) {
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|word| state[(word + 16 - AT) % 8]);
    let first = h.add(scheduled.add(constant)).add(V::choice(e, f, g)).add(V::Word::sum1(e));
    state[(3 + 16 - AT) % 8] = d.add(first);
    state[(7 + 16 - AT) % 8] = first.add(V::Word::sum0(a).add(V::majority(a, b, c)));
}

/// Hashes the same number of blocks into each state.
pub(crate) struct Compress<'a, W: Word, const N: usize> {
    pub(crate) states: &'a mut [[W; 8]; N],
    pub(crate) blocks: [&'a [W::Block]; N],
}

impl<W: Sha2Word, const N: usize> Job<W, N> for Compress<'_, W, N> {
    /// # Panics
    ///
    /// Panics unless the numbers of blocks are equal.
    #[inline(always)]
    unsafe fn run<V: Vector<N, Word = W>>(self) {
        let Self { states, blocks } = self;
        let count = blocks[0].len();
        assert!(blocks.iter().all(|blocks| blocks.len() == count), "messages have the same number of blocks");
        // SAFETY: the caller's promise, here and below.
        let mut state: [V; 8] =
            std::array::from_fn(|word| unsafe { V::of_words(std::array::from_fn(|lane| states[lane][word])) });
        for at in 0..count {
            let start = state;
            // SAFETY: as above.
            let mut schedule = unsafe { V::of_blocks::<true>(blocks.map(|blocks| &blocks[at])) };
            for (group, constants) in W::ROUND_CONSTANTS.iter().enumerate() {
                macro_rules! sixteen_rounds {
                    ($($at:literal)*) => { $(
                        if group > 0 {
                            extend_schedule::<V, N, $at>(&mut schedule);
                        }
                        // SAFETY: as above.
                        let constant = unsafe { V::repeat(constants[$at]) };
                        round::<V, N, $at>(&mut state, schedule[$at], constant);
                    )* };
                }
                sixteen_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            }
            for (word, start) in state.iter_mut().zip(start) {
                *word = word.add(start);
            }
        }
        for (word, vector) in state.iter().enumerate() {
            states.iter_mut().zip(vector.words()).for_each(|(state, value)| state[word] = value);
        }
    }
}
