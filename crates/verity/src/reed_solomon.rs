//! Reed-Solomon codes over GF(2^8): 255 symbols, of which up to 24 are parity, with the code of dm-verity.
//!
//! The field has the polynomial 0x11d and the generator 2. The roots of a code word are the powers 0, 1, and so on of
//! the generator. Its first symbol is the coefficient of the highest power.

/// Symbols of a code word.
pub(crate) const SYMBOLS: usize = 255;
/// Most symbols of parity.
pub(crate) const MAX_ROOTS: usize = 24;
const POLYNOMIAL: u16 = 0x11d;
/// Value of `LOG[0]`: zero has no logarithm.
const NONE: u8 = 255;

/// Powers of the generator, twice, so that the sum of two logarithms needs no remainder.
const EXP: [u8; 2 * SYMBOLS] = {
    let mut table = [0; 2 * SYMBOLS];
    let (mut at, mut power) = (0, 1u16);
    while at < SYMBOLS {
        table[at] = power as u8;
        table[at + SYMBOLS] = power as u8;
        power <<= 1;
        if power > 0xff {
            power ^= POLYNOMIAL;
        }
        at += 1;
    }
    table
};

const LOG: [u8; 256] = {
    let mut table = [NONE; 256];
    let mut at = 0;
    while at < SYMBOLS {
        table[EXP[at] as usize] = at as u8;
        at += 1;
    }
    table
};

fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])] }
}

/// Divides by a number that is not zero.
fn div(a: u8, b: u8) -> u8 {
    if a == 0 { 0 } else { EXP[usize::from(LOG[usize::from(a)]) + SYMBOLS - usize::from(LOG[usize::from(b)])] }
}

/// Returns a power of the generator.
fn exp(power: usize) -> u8 {
    EXP[power % SYMBOLS]
}

/// Polynomial of a degree up to [`MAX_ROOTS`]; the coefficient of the lowest power comes first.
type Polynomial = [u8; MAX_ROOTS + 1];

/// Returns the value of a polynomial.
fn value(polynomial: &[u8], at: u8) -> u8 {
    polynomial.iter().rev().fold(0, |sum, coefficient| mul(sum, at) ^ coefficient)
}

/// A code with a number of roots.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    roots: usize,
    /// Product of each number with each coefficient of the generator polynomial but the highest, which is 1. The next
    /// one comes first.
    steps: Box<[[u8; MAX_ROOTS]; 256]>,
}

impl Code {
    /// Returns the code with this number of symbols of parity, 2 to 24.
    pub(crate) fn new(roots: usize) -> Self {
        assert!((2..=MAX_ROOTS).contains(&roots), "a code has 2 to 24 symbols of parity");
        let mut generator = [0; MAX_ROOTS + 1];
        generator[0] = 1;
        for root in 0..roots {
            for at in (0..=root + 1).rev() {
                let lower = if at == 0 { 0 } else { generator[at - 1] };
                generator[at] = lower ^ mul(generator[at], exp(root));
            }
        }
        let mut steps = Box::new([[0; MAX_ROOTS]; 256]);
        for (number, step) in (0..=255u8).zip(steps.iter_mut()) {
            for (at, product) in step[..roots].iter_mut().enumerate() {
                *product = mul(number, generator[roots - 1 - at]);
            }
        }
        Self { roots, steps }
    }

    /// Returns the number of symbols of parity.
    pub(crate) fn roots(&self) -> usize {
        self.roots
    }

    /// Returns the number of symbols of a message.
    pub(crate) fn message_len(&self) -> usize {
        SYMBOLS - self.roots
    }

    /// Adds the next symbol of a message to its parity, which begins as zeroes.
    pub(crate) fn add(&self, parity: &mut [u8], symbol: u8) {
        let parity = &mut parity[..self.roots];
        let step = &self.steps[usize::from(symbol ^ parity[0])];
        parity.copy_within(1.., 0);
        parity[self.roots - 1] = 0;
        for (symbol, product) in parity.iter_mut().zip(step) {
            *symbol ^= product;
        }
    }

    /// Corrects a code word of [`SYMBOLS`] bytes: any number of symbols at `erased`, and errors elsewhere, as long as
    /// the erased ones and twice the others are not more than the roots. Returns the number of changed symbols, or
    /// `None` if there are too many errors; then the word is as it was. With too many errors another code word may come
    /// out: the caller compares the digest.
    pub(crate) fn correct(&self, word: &mut [u8; SYMBOLS], erased: &[usize]) -> Option<usize> {
        let mut syndromes = [0; MAX_ROOTS];
        let syndromes = &mut syndromes[..self.roots];
        for (power, syndrome) in syndromes.iter_mut().enumerate() {
            *syndrome = word.iter().fold(0, |sum, symbol| mul(sum, exp(power)) ^ symbol);
        }
        if syndromes.iter().all(|syndrome| *syndrome == 0) {
            return Some(0);
        }
        if erased.len() > self.roots {
            return None;
        }
        let (locator, degree) = self.locator(syndromes, erased)?;
        let locator = &locator[..=degree];
        // The locator has a root for each wrong symbol: the inverse of its place's power.
        let mut found = [0; MAX_ROOTS];
        let mut count = 0;
        for power in 0..SYMBOLS {
            if value(locator, exp(SYMBOLS - power)) == 0 {
                *found.get_mut(count).filter(|_| count < degree)? = power;
                count += 1;
            }
        }
        if count != degree {
            return None;
        }
        let mut corrections = [0; MAX_ROOTS];
        for (power, correction) in found[..count].iter().zip(&mut corrections) {
            *correction = magnitude(locator, syndromes, *power)?;
        }
        for (power, correction) in found[..count].iter().zip(corrections) {
            word[SYMBOLS - 1 - power] ^= correction;
        }
        Some(corrections[..count].iter().filter(|correction| **correction != 0).count())
    }

    /// Returns the polynomial whose roots are the places of the wrong symbols, and its degree (Berlekamp and Massey,
    /// beginning with the erased places). `None`: there are too many.
    fn locator(&self, syndromes: &[u8], erased: &[usize]) -> Option<(Polynomial, usize)> {
        let mut locator = [0; MAX_ROOTS + 1];
        locator[0] = 1;
        for (count, place) in erased.iter().enumerate() {
            let power = exp(SYMBOLS - 1 - place);
            for at in (1..=count + 1).rev() {
                locator[at] ^= mul(locator[at - 1], power);
            }
        }
        let mut previous = locator;
        let mut degree = erased.len();
        for step in erased.len()..self.roots {
            // The previous polynomial moves on with each step.
            previous.copy_within(..MAX_ROOTS, 1);
            previous[0] = 0;
            // The degree is at most the step: it begins with the erased places, and becomes at most one more.
            let terms = (0..=degree).map(|at| mul(locator[at], syndromes[step - at]));
            let discrepancy = terms.fold(0, |sum, term| sum ^ term);
            if discrepancy == 0 {
                continue;
            }
            let before = locator;
            for (coefficient, other) in locator.iter_mut().zip(previous) {
                *coefficient ^= mul(discrepancy, other);
            }
            if 2 * degree <= step + erased.len() {
                degree = step + 1 + erased.len() - degree;
                previous = before.map(|coefficient| div(coefficient, discrepancy));
            }
        }
        // A polynomial of a lower degree has too few roots, which the caller sees.
        (2 * degree <= self.roots + erased.len()).then_some((locator, degree))
    }
}

/// Returns the value by which the symbol at a power is wrong (Forney's formula). `None`: the locator has a double root.
fn magnitude(locator: &[u8], syndromes: &[u8], power: usize) -> Option<u8> {
    let inverse = exp(SYMBOLS - power);
    // The evaluator: the product of syndromes and locator, below the power of the roots.
    let mut evaluator = [0; MAX_ROOTS];
    for (at, coefficient) in evaluator[..syndromes.len()].iter_mut().enumerate() {
        let terms = (0..=at.min(locator.len() - 1)).map(|low| mul(locator[low], syndromes[at - low]));
        *coefficient = terms.fold(0, |sum, term| sum ^ term);
    }
    // The derivative has the odd coefficients only.
    let square = mul(inverse, inverse);
    let odd = locator.iter().skip(1).step_by(2).rev();
    let derivative = odd.fold(0, |sum, coefficient| mul(sum, square) ^ coefficient);
    // The first root is the power 0, so the quotient is multiplied by the place's power once.
    (derivative != 0).then(|| mul(exp(power), div(value(&evaluator[..syndromes.len()], inverse), derivative)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 20) as usize % limit
        }

        fn word(&mut self, code: &Code) -> [u8; SYMBOLS] {
            let mut word = [0; SYMBOLS];
            let (message, parity) = word.split_at_mut(code.message_len());
            for symbol in message {
                *symbol = self.below(256) as u8;
                code.add(parity, *symbol);
            }
            word
        }

        /// Returns different places of a word.
        fn places(&mut self, count: usize) -> Vec<usize> {
            let mut places = Vec::new();
            while places.len() < count {
                let place = self.below(SYMBOLS);
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            places
        }
    }

    #[test]
    fn field_has_inverses_and_the_generator_every_number() {
        for a in 1..=255 {
            assert_eq!((mul(a, div(1, a)), div(mul(a, 0x53), a)), (1, 0x53));
            assert_eq!(EXP[usize::from(LOG[usize::from(a)])], a);
        }
        assert_eq!((mul(0, 7), mul(7, 0), div(0, 7), mul(2, 0x80)), (0, 0, 0, 0x1d));
    }

    #[test]
    fn parity_makes_every_root_a_root() {
        for roots in 2..=MAX_ROOTS {
            let code = Code::new(roots);
            let word = Random(roots as u64).word(&code);
            for root in 0..roots {
                assert_eq!(word.iter().fold(0, |sum, symbol| mul(sum, exp(root)) ^ symbol), 0);
            }
        }
    }

    /// Every mix of errors and erasures that a code can correct is corrected; erased symbols may be right.
    #[test]
    fn errors_and_erasures_within_the_bound_are_corrected() {
        let mut corrected = 0;
        for roots in 2..=MAX_ROOTS {
            let (code, mut random) = (Code::new(roots), Random(99 + roots as u64));
            for erased in 0..=roots {
                for errors in 0..=(roots - erased) / 2 {
                    for _ in 0..4 {
                        let word = random.word(&code);
                        let places = random.places(erased + errors);
                        let mut broken = word;
                        let mut changed = 0;
                        for (at, place) in places.iter().enumerate() {
                            let error = if at < erased { random.below(3) * 77 } else { 1 + random.below(255) };
                            broken[*place] ^= error as u8;
                            changed += usize::from(error != 0);
                        }
                        assert_eq!(code.correct(&mut broken, &places[..erased]), Some(changed), "{roots} {places:?}");
                        assert!(broken == word, "{roots} roots, {erased} erased, {errors} errors");
                        corrected += 1;
                    }
                }
            }
        }
        println!("COUNT verity_code_words_corrected {corrected}");
    }

    #[test]
    fn too_many_errors_change_nothing_or_give_another_code_word() {
        let mut refused = 0;
        for roots in [2, 3, 8, 24] {
            let (code, mut random) = (Code::new(roots), Random(7));
            for _ in 0..200 {
                let word = random.word(&code);
                let mut broken = word;
                let errors = roots / 2 + 1 + random.below(9);
                for place in random.places(errors) {
                    broken[place] ^= 1 + random.below(255) as u8;
                }
                let before = broken;
                match code.correct(&mut broken, &[]) {
                    None => {
                        assert!(broken == before);
                        refused += 1;
                    }
                    Some(_) => {
                        let mut parity = [0; MAX_ROOTS];
                        broken[..code.message_len()].iter().for_each(|symbol| code.add(&mut parity, *symbol));
                        assert!(broken[code.message_len()..] == parity[..roots]);
                    }
                }
            }
            let mut word = random.word(&code);
            word[0] ^= 1;
            assert_eq!(code.correct(&mut word, &(0..=roots).collect::<Vec<_>>()), None, "more erased than roots");
        }
        assert!(refused > 400, "{refused}");
    }
}
