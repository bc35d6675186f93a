//! Static rates: the codes of `ibv_rate` as multiples of 2.5 Gb/s and in Mb/s.

use std::ffi::{c_int, c_uint};

/// `IBV_RATE_MAX`
const MAX: c_uint = 0;

/// Code, multiple of 2.5 Gb/s (0: not a multiple), Mb/s.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 0, 28_125),
    (20, 0, 53_125),
    (21, 0, 425_000),
    (22, 0, 637_500),
    (23, 0, 850_000),
    (24, 0, 1_275_000),
];

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    match RATES.iter().find(|(code, ..)| *code == rate) {
        Some((_, 0, _)) | None => -1,
        Some((_, multiple, _)) => *multiple,
    }
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    let found = RATES.iter().find(|(_, known, _)| *known == multiple && multiple != 0);
    found.map_or(MAX, |(code, ..)| *code)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|(code, ..)| *code == rate);
    found.map_or(-1, |(_, _, megabits)| *megabits)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(megabits: c_int) -> c_uint {
    let found = RATES.iter().find(|(_, _, known)| *known == megabits);
    found.map_or(MAX, |(code, ..)| *code)
}
