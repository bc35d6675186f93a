//! The live suite: Feroce against Linux rxe in a guest, run by `scripts/rxe.sh`.
//!
//! A [`case::Case`] is data: what is posted, what completes at either end and how, and what the memories
//! hold afterwards. [`table`] makes all of them. [`run`] plays one between two [`end::End`]s: Feroce
//! ([`feroce`]) and the agent in the guest ([`agent`]), in either role. [`packets`] reads what crossed
//! Feroce's port meanwhile, and [`judge`] has scapy and tshark read it too.

pub mod agent;
pub mod case;
pub mod end;
pub mod faults;
pub mod feroce;
pub mod judge;
pub mod model;
pub mod packets;
pub mod run;
pub mod table;

use std::fmt;

/// Why a case failed, in words for the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Makes a failure of an error, behind what was under way.
pub fn failed<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure(format!("{doing}: {error}"))
}
