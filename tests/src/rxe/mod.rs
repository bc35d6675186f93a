//! The live suite: Feroce against the Linux rxe driver in a guest. `scripts/rxe.sh` runs it.
//!
//! A [`case::Case`] is data: a plan, the role of Feroce and a network fault. [`cases`] creates all
//! cases. [`run_case`] runs a case between Feroce and the agent in the guest. [`capture_checks`]
//! checks the frames that Feroce's port captured meanwhile, and [`external_decoders`] checks them
//! with scapy and tshark.

pub mod capture_checks;
pub mod case;
pub mod cases;
pub mod external_decoders;
pub mod faults;
pub mod run_case;
