//! The live suite: Feroce against Linux rxe in a guest, run by `scripts/rxe.sh`.
//!
//! A [`case::Case`] is data: a plan, the role of Feroce and the faults of the network. [`table`] makes
//! all cases. [`run`] plays one between Feroce and the agent in the guest, in either role. [`packets`]
//! reads what crossed Feroce's port meanwhile, and [`judge`] has scapy and tshark read it too.

pub mod case;
pub mod faults;
pub mod judge;
pub mod packets;
pub mod run;
pub mod table;
