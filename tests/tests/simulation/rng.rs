//! Random numbers from a seed, the same on every machine.

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }
    /// In `from..=to`.
    pub fn within(&mut self, from: u32, to: u32) -> u32 {
        from + self.below(u64::from(to - from) + 1) as u32
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
