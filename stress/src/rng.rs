//! A small generator of random numbers, the same for the same seed on every machine.
//!
//! It depends on no crate, so a seed means the same round for ever.

use std::time::Duration;

/// The generator; clones produce the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Spreads a number over all bits.
pub fn scatter(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scatter(self.0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `least` to `most`.
    pub fn within(&mut self, least: usize, most: usize) -> usize {
        least + self.below((most - least + 1) as u64) as usize
    }

    /// As [`within`](Rng::within) from 1, and mostly small.
    pub fn few(&mut self, most: usize) -> usize {
        let bits = 1 + self.below(u64::from(usize::BITS - most.leading_zeros()));
        self.within(1, most.min((1 << bits) - 1))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A time below `most` microseconds.
    pub fn micros(&mut self, most: u64) -> Duration {
        Duration::from_nanos(self.below(most * 1000))
    }
}
