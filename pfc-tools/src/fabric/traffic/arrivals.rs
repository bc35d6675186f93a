//! Poisson arrivals: exponentially distributed times in integer arithmetic, since floating point
//! differs between machines.

use crate::fabric::time::Time;

/// Mean time between flows of `mean` bytes that load `rate` bits per second with `load` (units of
/// 2^-31).
pub(super) fn mean_gap(mean: u64, rate: u64, load: u32) -> Time {
    let picoseconds = u128::from(mean) * 8_000_000_000_000 * (1 << 31);
    let rate = (u128::from(rate) * u128::from(load)).max(1);
    Time(u64::try_from(picoseconds / rate).unwrap_or(u64::MAX))
}

/// An exponentially distributed time: -ln(u) times the mean, with u uniform in (0, 1] of 32 bits.
pub(super) fn exponential(mean: Time, random: u32) -> Time {
    let product = u128::from(mean.0) * u128::from(minus_ln(random));
    Time(u64::try_from(product >> 32).unwrap_or(u64::MAX))
}

/// -ln((random + 1) / 2^32) in units of 2^-32.
fn minus_ln(random: u32) -> u64 {
    const LN_2: u128 = 2_977_044_472; // ln 2 in units of 2^-32.
    let u = u64::from(random) + 1;
    // u = 2^whole * m with 1 <= m < 2, m in units of 2^-63.
    let whole = u.ilog2();
    let mut m = u128::from(u) << (63 - whole);
    let mut log2 = u64::from(whole) << 32;
    for bit in (0..32).rev() {
        m = (m * m) >> 63;
        if m >= 1 << 64 {
            m >>= 1;
            log2 |= 1 << bit;
        }
    }
    let below_one = (32_u64 << 32) - log2;
    u64::try_from((u128::from(below_one) * LN_2) >> 32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::cast_precision_loss)]
    fn logarithms_are_those_of_the_library() {
        for random in [0, 1, 2, 1000, 1 << 16, 1 << 31, 0xdead_beef, u32::MAX] {
            let exact = -((f64::from(random) + 1.0) / 4_294_967_296.0).ln();
            let ours = minus_ln(random) as f64 / 4_294_967_296.0;
            assert!((exact - ours).abs() < 1e-8, "{random}: {exact} {ours}");
        }
    }

    #[test]
    fn the_mean_gap_follows_from_the_load() {
        // 1 MB takes 200 us at 40 Gb/s; at half load one arrives every 400 us.
        assert_eq!(mean_gap(1_000_000, 40_000_000_000, 1 << 30), Time::from_micros(400));
    }
}
