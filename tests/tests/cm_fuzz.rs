//! Random MADs for a CM endpoint with identifiers in several states.
//!
//! The endpoint never panics, sends at most two MADs for each received one, and holds nothing after
//! all identifiers are destroyed.

use feroce_engine::time::Duration;
use feroce_tests::cm::random;
use feroce_tests::cm_fuzz::{busy_pair, destroy_everything, receive, sent_messages};
use feroce_wire::cm::CmMad;

/// Inputs per run.
const INPUTS: u64 = 2000;
/// MADs per input.
const MADS: u32 = 40;

#[test]
fn random_mads_do_no_harm() {
    for seed in 0..INPUTS {
        let mut draw = random(seed);
        let mut pair = busy_pair(seed % 8);
        let sent = sent_messages(&pair);
        for _ in 0..MADS {
            let message = sent[draw() as usize % sent.len()];
            let mut mad = CmMad { transaction: 1, modifier: 0, message }.to_bytes();
            for _ in 0..draw() % 6 {
                // Communication ids and the fields near them change more often than the rest.
                let at = 24 + draw() as usize % if draw().is_multiple_of(2) { 16 } else { 232 };
                mad[at] = draw().to_be_bytes()[0];
            }
            if draw().is_multiple_of(4) {
                mad[17] = 0x10 + draw().to_be_bytes()[0] % 11;
            }
            receive(&mut pair, &mad);
            if draw().is_multiple_of(3) {
                pair.now += Duration::from_millis(u64::from(draw() % 3000));
                pair.ends[0].expire(pair.now);
                while pair.ends[0].transmit().is_some() {}
            }
        }
        destroy_everything(&mut pair);
    }
}
