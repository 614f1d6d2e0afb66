//! Circuits of Serpent's S-boxes and their inverses: of operations on two inputs, and of tables of three inputs.
//!
//! A search for few gates found them: random choices among all ways to compute an output from one, two or three further
//! gates, and otherwise by cases of one input. The tests compare each with its table.

use super::words::{Lookup, Words};

/// Evaluates a circuit: the names of its inputs, its gates, its outputs.
macro_rules! circuit {
    ($x:ident: $($input:ident)*; $($out:ident = $op:tt $($in:ident)*;)* => $($result:ident)*) => {{
        let [$($input),*] = $x;
        $(let $out = circuit!(@ $op $($in)*);)*
        [$($result),*]
    }};
    (@ and $a:ident $b:ident) => { $a.and($b) };
    (@ or $a:ident $b:ident) => { $a.or($b) };
    (@ xor $a:ident $b:ident) => { $a.xor($b) };
    (@ clear $a:ident $b:ident) => { $a.clear($b) };
    (@ not $a:ident) => { $a.not() };
    (@ $table:literal $a:ident $b:ident $c:ident) => { $a.lookup::<$table>($b, $c) };
}

/// Applies S-box `BOX`.
#[inline(always)]
pub(super) fn substitute<W: Words, const BOX: usize>(x: [W; 4]) -> [W; 4] {
    match BOX {
        0 => circuit! { x: a b c d;
        x0 = or a d; x1 = xor x0 b; x2 = xor x1 c; x3 = or d x1; x4 = xor x3 a; x5 = or x1 x4; x6 = xor x5 d;
        x7 = not x6; x8 = clear c x7; x9 = xor x4 x8; x10 = xor x6 x9; x11 = xor x10 x2;
        x12 = clear x11 x3; x13 = clear x9 x12; x14 = xor x13 x1;
        => x9 x11 x14 x2 },
        1 => circuit! { x: a b c d;
        x0 = clear b d; x1 = not x0; x2 = xor x1 a; x3 = clear x2 d; x4 = xor x3 b; x5 = clear c x4;
        x6 = xor x2 x5; x7 = not a; x8 = or a b; x9 = xor c d; x10 = xor x8 x9; x11 = xor x7 x10;
        x12 = xor x3 x10; x13 = clear x12 x6; x14 = xor x13 x4; x15 = xor x12 x14;
        => x6 x14 x11 x15 },
        2 => circuit! { x: a b c d;
        x0 = not c; x1 = and a c; x2 = xor x1 d; x3 = not x2; x4 = and b x3; x5 = xor a x4;
        x6 = xor x0 x5; x7 = clear a x3; x8 = xor x7 b; x9 = or x8 x6; x10 = xor x3 x9; x11 = xor b x2;
        x12 = xor x11 c; x13 = and x6 x8; x14 = xor x13 x3;
        => x12 x14 x10 x6 },
        3 => circuit! { x: a b c d;
        x0 = and a d; x1 = xor x0 b; x2 = clear x1 a; x3 = xor x2 d; x4 = clear c x3; x5 = xor x1 x4;
        x6 = xor c x5; x7 = or a x6; x8 = clear x3 x7; x9 = xor x8 x5; x10 = or x3 x6; x11 = xor x10 x9;
        x12 = xor x11 a; x13 = clear x9 x12; x14 = xor x13 x3;
        => x14 x12 x9 x6 },
        4 => circuit! { x: a b c d;
        x0 = clear d a; x1 = xor x0 c; x2 = not a; x3 = xor x2 d; x4 = clear b x3; x5 = xor x1 x4;
        x6 = clear b x5; x7 = xor x6 x3; x8 = xor b x7; x9 = clear x6 x8; x10 = and a x5; x11 = xor x9 x10;
        x12 = xor x1 x9; x13 = or x12 x10; x14 = xor x13 d;
        => x5 x14 x11 x7 },
        5 => circuit! { x: a b c d;
        x0 = not a; x1 = or x0 b; x2 = xor x1 c; x3 = xor b x2; x4 = xor x3 a; x5 = and d x4;
        x6 = xor x2 x5; x7 = and a x6; x8 = or x7 x3; x9 = xor x8 d; x10 = clear x6 d; x11 = xor x10 x4;
        x12 = xor b d; x13 = clear x3 x11; x14 = xor x13 x0; x15 = xor x12 x14;
        => x11 x6 x15 x9 },
        6 => circuit! { x: a b c d;
        x0 = not c; x1 = xor x0 b; x2 = and a d; x3 = xor x1 x2; x4 = clear x3 d; x5 = xor x4 a;
        x6 = or x3 x5; x7 = xor x6 d; x8 = clear b x7; x9 = xor x5 x8; x10 = xor x0 x7; x11 = xor x2 x9;
        x12 = xor x10 x11; x13 = clear x12 x9; x14 = not x13; x15 = xor x14 x7;
        => x9 x3 x12 x15 },
        7 => circuit! { x: a b c d;
        x0 = xor b c; x1 = clear b c; x2 = xor x1 d; x3 = xor x2 a; x4 = and a x3; x5 = xor x0 x4;
        x6 = xor b x3; x7 = and x6 x5; x8 = and d x2; x9 = xor x7 x8; x10 = not a; x11 = and x3 x5;
        x12 = xor x10 x11; x13 = clear x2 x6; x14 = and c x13; x15 = xor x12 x14; x16 = and a x11;
        x17 = xor x16 x6;
        => x15 x17 x9 x5 },
        _ => unreachable!("Serpent has eight S-boxes"),
    }
}

/// Applies the inverse of S-box `BOX`.
#[inline(always)]
pub(super) fn invert<W: Words, const BOX: usize>(x: [W; 4]) -> [W; 4] {
    match BOX {
        0 => circuit! { x: a b c d;
        x0 = and b c; x1 = xor x0 a; x2 = not x1; x3 = xor b x1; x4 = xor c x2; x5 = or x3 x4;
        x6 = and d x5; x7 = xor x2 x6; x8 = clear b x2; x9 = xor x8 c; x10 = xor x9 d; x11 = clear x1 x6;
        x12 = or x11 x10; x13 = xor x12 x3; x14 = or x7 x13; x15 = xor x14 x9;
        => x13 x15 x10 x7 },
        1 => circuit! { x: a b c d;
        x0 = clear b d; x1 = xor x0 a; x2 = xor x1 c; x3 = not x1; x4 = clear b x3; x5 = xor x4 d;
        x6 = clear x5 x2; x7 = xor x6 b; x8 = and c x7; x9 = xor x5 x8; x10 = xor x1 x7; x11 = clear x9 x10;
        x12 = xor x11 x3; x13 = and c x9; x14 = xor x13 x10;
        => x9 x14 x12 x2 },
        2 => circuit! { x: a b c d;
        x0 = not d; x1 = or x0 b; x2 = xor x1 c; x3 = or x0 x2; x4 = xor x3 b; x5 = and a x4;
        x6 = xor x2 x5; x7 = xor a x4; x8 = xor x7 x6; x9 = clear b x2; x10 = xor x9 a; x11 = xor x10 x0;
        x12 = and x6 x11; x13 = xor x12 x4;
        => x11 x8 x6 x13 },
        3 => circuit! { x: a b c d;
        x0 = clear c b; x1 = xor x0 a; x2 = or x1 d; x3 = xor b x2; x4 = xor c x3; x5 = clear x1 x4;
        x6 = or x1 x3; x7 = xor x6 d; x8 = clear x4 x7; x9 = xor x5 x8; x10 = and d x4; x11 = xor b x9;
        x12 = or x11 x1; x13 = xor x10 x12; x14 = xor x11 x13; x15 = xor x14 x6;
        => x4 x9 x15 x13 },
        4 => circuit! { x: a b c d;
        x0 = xor a b; x1 = and a x0; x2 = xor x1 c; x3 = clear d x2; x4 = xor x0 x3; x5 = clear x4 a;
        x6 = or x5 d; x7 = xor x6 x2; x8 = clear x7 c; x9 = xor x8 a; x10 = not x4; x11 = clear d x10;
        x12 = xor x9 x11; x13 = xor d x10; x14 = clear x7 a; x15 = xor x13 x14;
        => x15 x7 x12 x4 },
        5 => circuit! { x: a b c d;
        x0 = xor a d; x1 = and a d; x2 = xor x1 c; x3 = and x2 b; x4 = xor x0 x3; x5 = and b x4;
        x6 = xor x5 a; x7 = xor b x2; x8 = and c x7; x9 = xor x6 x8; x10 = and a x5; x11 = xor x10 x7;
        x12 = not x11; x13 = and a x11; x14 = xor b x4; x15 = xor x13 x14;
        => x4 x15 x9 x12 },
        6 => circuit! { x: a b c d;
        x0 = not b; x1 = clear a c; x2 = xor x1 d; x3 = xor x0 x2; x4 = xor a c; x5 = xor x4 x3;
        x6 = and x2 x4; x7 = xor x6 a; x8 = clear b x7; x9 = xor x5 x8; x10 = xor b x7; x11 = clear x10 x5;
        x12 = xor x11 x2; x13 = xor x9 x10;
        => x13 x3 x12 x9 },
        7 => circuit! { x: a b c d;
        x0 = or a d; x1 = xor x0 c; x2 = or d x1; x3 = xor x2 a; x4 = not x3; x5 = clear b x4;
        x6 = xor x1 x5; x7 = clear d x6; x8 = xor x7 b; x9 = and c x3; x10 = xor x8 x9; x11 = xor d x10;
        x12 = clear x3 x6; x13 = xor x11 x12; x14 = clear x10 x13; x15 = xor x14 x3;
        => x6 x10 x13 x15 },
        _ => unreachable!("Serpent has eight S-boxes"),
    }
}

/// Applies S-box `BOX`.
#[inline(always)]
pub(super) fn substitute_by_lookup<W: Lookup, const BOX: usize>(x: [W; 4]) -> [W; 4] {
    match BOX {
        0 => circuit! { x: a b c d;
        x0 = 0x36 a b d; x1 = 0x5a x0 b c; x2 = 0x2d a d x1; x3 = 0x47 d x0 x2; x4 = 0xca c x2 x3;
        x5 = 0x76 c x0 x2; x6 = 0x24 x5 d x3; x7 = 0xe1 x0 x4 x6;
        => x4 x6 x7 x1 },
        1 => circuit! { x: a b c d;
        x0 = 0x59 a b c; x1 = 0x5a x0 a d; x2 = 0x5b b c x1; x3 = 0x16 c d x0; x4 = 0xca a x2 x3;
        x5 = 0x6c a x1 x2; x6 = 0xb4 x5 b x3; x7 = 0xb4 x0 x4 x6;
        => x7 x6 x1 x4 },
        2 => circuit! { x: a b c d;
        x0 = 0x6a a c d; x1 = 0x96 x0 b c; x2 = 0x0a b d x0; x3 = 0x69 x2 a x1; x4 = 0x54 c x0 x2;
        x5 = 0xb1 x4 x0 x3; x6 = 0xe1 x0 x3 x4;
        => x1 x5 x6 x3 },
        3 => circuit! { x: a b c d;
        x0 = 0x83 a b c; x1 = 0x1d b c x0; x2 = 0xca d x0 x1; x3 = 0x6e a b d; x4 = 0x69 x3 c x0;
        x5 = 0x78 d x1 x3; x6 = 0x3c x5 a x2; x7 = 0x63 a x1 x4; x8 = 0x4b x7 x4 x6;
        => x6 x8 x4 x2 },
        4 => circuit! { x: a b c d;
        x0 = 0x6b a b d; x1 = 0x2d x0 b c; x2 = 0x49 a d x0; x3 = 0xc3 x2 c d; x4 = 0x1c b x1 x3;
        x5 = 0x78 x4 d x3; x6 = 0x52 d x0 x3; x7 = 0x78 x6 b x0;
        => x3 x7 x5 x1 },
        5 => circuit! { x: a b c d;
        x0 = 0x7e a b d; x1 = 0x69 x0 a c; x2 = 0x43 b c x1; x3 = 0x39 x2 d x0; x4 = 0x46 a b x1;
        x5 = 0xe1 x4 d x3; x6 = 0x2d a d x1; x7 = 0xc3 x6 b c;
        => x1 x7 x3 x5 },
        6 => circuit! { x: a b c d;
        x0 = 0x6c a c d; x1 = 0xc3 x0 b d; x2 = 0x62 a b d; x3 = 0xe9 a b d; x4 = 0xca c x2 x3;
        x5 = 0x1e b x0 x2; x6 = 0x56 x5 c x3; x7 = 0xd2 x0 x4 x6;
        => x4 x1 x6 x7 },
        7 => circuit! { x: a b c d;
        x0 = 0x49 a b c; x1 = 0x87 x0 a d; x2 = 0x34 c d x0; x3 = 0x87 x2 a b; x4 = 0x16 a x1 x3;
        x5 = 0xe1 x4 c d; x6 = 0x78 b x4 x5; x7 = 0xb4 x6 a x1;
        => x3 x7 x5 x1 },
        _ => unreachable!("Serpent has eight S-boxes"),
    }
}

/// Applies the inverse of S-box `BOX`.
#[inline(always)]
pub(super) fn invert_by_lookup<W: Lookup, const BOX: usize>(x: [W; 4]) -> [W; 4] {
    match BOX {
        0 => circuit! { x: a b c d;
        x0 = 0x56 a b c; x1 = 0xa5 x0 c d; x2 = 0x29 b c d; x3 = 0x3e b d x1; x4 = 0xca a x2 x3;
        x5 = 0x68 a b x0; x6 = 0x29 x5 x2 x3; x7 = 0xe1 x0 x4 x6;
        => x4 x7 x1 x6 },
        1 => circuit! { x: a b c d;
        x0 = 0x2d a b d; x1 = 0xa5 x0 b c; x2 = 0x9b c d x0; x3 = 0x34 c d x0; x4 = 0xca b x2 x3;
        x5 = 0x3e b c x1; x6 = 0xd2 x5 d x2; x7 = 0xb4 x0 x4 x6;
        => x6 x4 x7 x1 },
        2 => circuit! { x: a b c d;
        x0 = 0xb4 b c d; x1 = 0x39 b c d; x2 = 0xca a x0 x1; x3 = 0x5c a x0 x1; x4 = 0x67 x1 x2 x3;
        x5 = 0x97 x4 b d; x6 = 0x3c a d x2; x7 = 0x2d x6 b x1;
        => x7 x3 x2 x5 },
        3 => circuit! { x: a b c d;
        x0 = 0x79 b c d; x1 = 0x4b x0 a d; x2 = 0x2c a b x0; x3 = 0xb4 x2 c d; x4 = 0x4d c d x3;
        x5 = 0x97 x4 a x0; x6 = 0x2d d x3 x5; x7 = 0x87 x6 a c;
        => x1 x5 x7 x3 },
        4 => circuit! { x: a b c d;
        x0 = 0x2c a b d; x1 = 0xb4 x0 c d; x2 = 0x7a a b c; x3 = 0xe1 x2 d x0; x4 = 0x79 a c d;
        x5 = 0x87 x4 a b; x6 = 0x63 a d x5; x7 = 0x3c x6 x1 x2;
        => x7 x5 x3 x1 },
        5 => circuit! { x: a b c d;
        x0 = 0x25 a b d; x1 = 0x87 x0 b c; x2 = 0x43 a c d; x3 = 0x4b x2 b x0; x4 = 0x29 a b c;
        x5 = 0xb4 x4 a d; x6 = 0x3a a b x2; x7 = 0x96 x6 x1 x5;
        => x1 x7 x3 x5 },
        6 => circuit! { x: a b c d;
        x0 = 0x59 a c d; x1 = 0x5a x0 a b; x2 = 0x72 a c x0; x3 = 0x65 a c d; x4 = 0xca b x2 x3;
        x5 = 0x5c b x2 x3; x6 = 0x87 x0 x4 x5;
        => x4 x1 x6 x5 },
        7 => circuit! { x: a b c d;
        x0 = 0x36 a c d; x1 = 0x4b a d x0; x2 = 0xca b x0 x1; x3 = 0x49 b x0 x1; x4 = 0xd6 x3 c d;
        x5 = 0x24 b d x3; x6 = 0x06 x5 x1 x3; x7 = 0x1c a b d; x8 = 0xd2 x7 c x0;
        => x2 x6 x8 x4 },
        _ => unreachable!("Serpent has eight S-boxes"),
    }
}
