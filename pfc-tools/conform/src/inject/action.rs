//! The actions of scripts, and how they are written.

use std::time::Duration;

use feroce_wire::{NakCode, RnrTimer, Syndrome};

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// One bit is flipped.
    Corrupt,
    /// The packet is marked CE, whether it is ECN-capable or not.
    Mark,
    /// This many further copies follow at once.
    Duplicate(u32),
    /// One copy follows this much later.
    Echo(Duration),
    /// The packet is delayed.
    Delay(Duration),
    /// The packet is held until this many later packets of its side have passed.
    Reorder(u32),
    /// The last bytes are removed.
    Truncate(u32),
    /// The payload is shortened by this many bytes; lengths and ICRC are corrected.
    Shorten(u32),
    /// The PSN is increased; the ICRC is corrected.
    AddPsn(u32),
    /// The remote key is replaced by one that was never issued; the ICRC is corrected.
    WrongKey,
    /// The remote address is moved beyond the region; the ICRC is corrected.
    WrongAddress,
    /// The opcode is replaced; the ICRC is corrected.
    Opcode(u8),
    /// The acknowledge request is cleared; the ICRC is corrected.
    NoAckRequest,
    /// The P_Key is replaced; the ICRC is corrected.
    Pkey(u16),
    /// The DSCP is replaced; the checksum is corrected.
    Dscp(u8),
    /// A field of the BTH is changed, which one depends on the number: one that receivers ignore,
    /// or one that makes them drop the packet. The ICRC is corrected.
    Fuzz(u32),
    /// A forged acknowledgement with this syndrome follows a response, for the next PSN.
    Forge(Syndrome),
    /// This many forged CNPs follow, to the same QP.
    Cnp(u32),
    /// The QP number in a REP of the CM is increased; the ICRC is corrected.
    WrongQpn,
}

/// The actions and their keys, for the error message.
const NAMES: &str = "drop, corrupt, mark, duplicate (count), echo (time), delay (time), reorder \
                     (count), truncate (count), shorten (count), add-psn (count), wrong-key, \
                     wrong-address, opcode (count), no-ack-request, pkey (count), dscp (count), \
                     fuzz (count), forge-nak (count), forge-rnr (count), cnp (count), wrong-qpn";

impl Action {
    /// Reads an action with its keys.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(name: &str, count: Option<u32>, time: Option<Duration>) -> Result<Self, String> {
        let code = |count| u8::try_from(count).map_err(|_| "an opcode is at most 255".to_owned());
        Ok(match (name, count, time) {
            ("drop", None, None) => Self::Drop,
            ("corrupt", None, None) => Self::Corrupt,
            ("mark", None, None) => Self::Mark,
            ("duplicate", count, None) => Self::Duplicate(count.unwrap_or(1)),
            ("echo", None, Some(time)) => Self::Echo(time),
            ("delay", None, Some(time)) => Self::Delay(time),
            ("reorder", Some(count), None) => Self::Reorder(count),
            ("truncate", Some(count), None) => Self::Truncate(count),
            ("shorten", Some(count), None) => Self::Shorten(count),
            ("add-psn", Some(count), None) => Self::AddPsn(count),
            ("wrong-key", None, None) => Self::WrongKey,
            ("wrong-address", None, None) => Self::WrongAddress,
            ("opcode", Some(count), None) => Self::Opcode(code(count)?),
            ("no-ack-request", None, None) => Self::NoAckRequest,
            ("pkey", Some(count), None) => {
                let pkey = u16::try_from(count);
                Self::Pkey(pkey.map_err(|_| "a P_Key is at most 65535")?)
            }
            ("dscp", Some(count), None) => {
                let dscp = u8::try_from(count).ok().filter(|dscp| *dscp < 64);
                Self::Dscp(dscp.ok_or("a DSCP is at most 63")?)
            }
            ("fuzz", Some(count), None) => Self::Fuzz(count),
            ("forge-nak", Some(count), None) => {
                let code = u8::try_from(count).ok().and_then(NakCode::from_code);
                Self::Forge(Syndrome::Nak(code.ok_or("a NAK code is 0 to 4")?))
            }
            ("forge-rnr", Some(count), None) => {
                let timer = u8::try_from(count).ok().and_then(RnrTimer::new);
                Self::Forge(Syndrome::RnrNak(timer.ok_or("an RNR timer code is 0 to 31")?))
            }
            ("cnp", count, None) => Self::Cnp(count.unwrap_or(1)),
            ("wrong-qpn", None, None) => Self::WrongQpn,
            _ => {
                return Err(format!("no action `{name}` with these keys; the actions are {NAMES}"));
            }
        })
    }

    /// Returns true if the action needs a response to forge from.
    pub const fn needs_response(self) -> bool {
        matches!(self, Self::Forge(_))
    }

    /// Returns whether the action applies to messages of the CM only (`true`), to packets of
    /// connections only (`false`), or to both (`None`).
    pub const fn is_for_cm(self) -> Option<bool> {
        match self {
            Self::WrongQpn => Some(true),
            Self::Drop
            | Self::Corrupt
            | Self::Mark
            | Self::Duplicate(_)
            | Self::Echo(_)
            | Self::Delay(_)
            | Self::Reorder(_)
            | Self::Truncate(_)
            | Self::Pkey(_)
            | Self::Dscp(_) => None,
            _ => Some(false),
        }
    }
}
