//! The live suite: Feroce against the Linux rxe driver in a guest. `scripts/rxe.sh` runs it.
//!
//! A [`case::Case`] is data: a plan, the role of Feroce and the faults of the network. [`cases`]
//! makes all cases. [`run_case`] plays one between Feroce and the agent in the guest, in either
//! role. [`capture_checks`] reads what crossed Feroce's port meanwhile, and [`external_decoders`]
//! has scapy and tshark read it too.

pub mod capture_checks;
pub mod case;
pub mod cases;
pub mod external_decoders;
pub mod faults;
pub mod run_case;
