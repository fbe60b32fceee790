//! Which worker a flow belongs to.

use crate::FlowId;

/// Spreads the bits of `x` over the whole word, so that sequential numbers look random.
///
/// This is the finaliser of SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators*, OOPSLA 2014): a bijection. It has no key: a client that chooses flow numbers freely can choose
/// colliding ones, so let the server number its connections.
pub(crate) const fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Maps a random word evenly onto `0..n`.
pub(crate) const fn scale(random: u64, n: usize) -> usize {
    ((random as u128 * n as u128) >> 64) as usize
}

/// The worker, of `workers`, that `flow` hashes to.
pub(crate) const fn home(flow: FlowId, workers: usize) -> usize {
    scale(scramble(flow.0), workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_flows_spread_evenly() {
        for workers in [2, 3, 7, 16] {
            let mut flows = [0_u32; 16];
            for flow in 0..16_000 {
                flows[home(FlowId(flow), workers)] += 1;
            }
            let mean = 16_000.0 / workers as f64;
            // Five standard deviations of a binomial count.
            let tolerance = 5.0 * f64::from(mean as u32).powf(0.5);
            for (worker, &n) in flows.iter().enumerate() {
                if worker < workers {
                    assert!(
                        (f64::from(n) - mean).abs() < tolerance,
                        "{workers} workers: {flows:?}"
                    );
                } else {
                    assert_eq!(n, 0);
                }
            }
        }
    }
}
