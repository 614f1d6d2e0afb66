//! Serpent's rounds on `G` groups of blocks by turns, so that the CPU need not wait for the results of one group.
//!
//! Everything is `inline(always)` into an entry point that enables the instructions; nothing here branches on or
//! indexes by key or data.

#![allow(clippy::needless_range_loop, reason = "an index counts in several arrays")]

use super::schedule::{ROUNDS, Schedule};
use super::words::Words;

/// Runs a statement for each S-box number.
macro_rules! each_box {
    ($n:ident => $body:expr, $($number:literal)*) => { $({ const $n: usize = $number; $body; })* };
}

#[inline(always)]
pub(super) fn encrypt<W: Words, const G: usize>(keys: &Schedule, groups: &mut [[W; 4]; G]) {
    let mut at = 0;
    loop {
        each_box!(N => {
            add_key(&keys.0[at + N], groups);
            substitute::<W, G, N>(groups);
            if N < 7 {
                mix(groups);
            }
        }, 0 1 2 3 4 5 6 7);
        at += 8;
        if at == ROUNDS {
            break;
        }
        mix(groups);
    }
    add_key(&keys.0[ROUNDS], groups);
}

#[inline(always)]
pub(super) fn decrypt<W: Words, const G: usize>(keys: &Schedule, groups: &mut [[W; 4]; G]) {
    let mut at = ROUNDS;
    add_key(&keys.0[ROUNDS], groups);
    loop {
        at -= 8;
        each_box!(N => {
            if N < 7 {
                unmix(groups);
            }
            inverse::<W, G, N>(groups);
            add_key(&keys.0[at + N], groups);
        }, 7 6 5 4 3 2 1 0);
        if at == 0 {
            break;
        }
        unmix(groups);
    }
}

#[inline(always)]
fn add_key<W: Words, const G: usize>(key: &[u32; 4], groups: &mut [[W; 4]; G]) {
    for word in 0..4 {
        for group in 0..G {
            groups[group][word] = groups[group][word].xor_word(key[word]);
        }
    }
}

#[inline(always)]
fn substitute<W: Words, const G: usize, const BOX: usize>(groups: &mut [[W; 4]; G]) {
    for group in 0..G {
        groups[group] = W::substitute::<BOX>(groups[group]);
    }
}

#[inline(always)]
fn inverse<W: Words, const G: usize, const BOX: usize>(groups: &mut [[W; 4]; G]) {
    for group in 0..G {
        groups[group] = W::invert::<BOX>(groups[group]);
    }
}

/// Applies the linear transformation.
#[inline(always)]
fn mix<W: Words, const G: usize>(groups: &mut [[W; 4]; G]) {
    for group in 0..G {
        let [mut a, mut b, mut c, mut d] = groups[group];
        a = a.rotate::<13, 19>();
        c = c.rotate::<3, 29>();
        b = b.xor3(a, c).rotate::<1, 31>();
        d = d.xor3(c, a.shift_left::<3>()).rotate::<7, 25>();
        a = a.xor3(b, d).rotate::<5, 27>();
        c = c.xor3(d, b.shift_left::<7>()).rotate::<22, 10>();
        groups[group] = [a, b, c, d];
    }
}

/// Undoes the linear transformation.
#[inline(always)]
fn unmix<W: Words, const G: usize>(groups: &mut [[W; 4]; G]) {
    for group in 0..G {
        let [mut a, mut b, mut c, mut d] = groups[group];
        c = c.rotate::<10, 22>().xor3(d, b.shift_left::<7>());
        a = a.rotate::<27, 5>().xor3(b, d);
        d = d.rotate::<25, 7>().xor3(c, a.shift_left::<3>());
        b = b.rotate::<31, 1>().xor3(a, c);
        c = c.rotate::<29, 3>();
        a = a.rotate::<19, 13>();
        groups[group] = [a, b, c, d];
    }
}
