//! Requests that the `ibv_wr_*` functions collect until `ibv_wr_complete` posts them.

use std::ffi::c_int;

use feroce_engine::device::PostError;
use feroce_engine::verbs::{Data, SendFlags, SendOp, SendRequest, Sge};

use crate::abi::send_wr_ud;
use crate::errno;

/// Destination of a send request.
#[derive(Clone, Copy)]
pub enum Destination {
    /// The peer of a connected QP.
    Peer,
    /// A UD destination, by address handle.
    Datagram(send_wr_ud),
    /// XRC: the peer's shared receive queue with this number.
    Srq(u32),
}

/// Requests under construction. The buffers are reused.
#[derive(Default)]
pub struct Batch {
    /// Requests in the order of their `ibv_wr_*` calls.
    pub requests: Vec<Request>,
    /// Scatter/gather entries of all requests.
    pub sges: Vec<Sge>,
    inline: Vec<u8>,
    /// First error of the batch.
    pub error: Option<c_int>,
}

/// A request of the batch.
pub struct Request {
    pub wr_id: u64,
    pub op: SendOp,
    pub flags: SendFlags,
    pub data: LocalData,
    pub to: Destination,
}

/// Local data of a request: a range of one of the batch's buffers.
#[derive(Debug)]
pub enum LocalData {
    Sges { from: usize, len: usize },
    Inline { from: usize, len: usize },
}

/// No local data.
pub const NO_DATA: LocalData = LocalData::Sges { from: 0, len: 0 };

impl Batch {
    /// Removes all requests and the error; keeps the buffers.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// Records `code` unless an earlier error exists.
    pub fn fail(&mut self, code: c_int) {
        self.error.get_or_insert(code);
    }

    /// Runs `act` on each request until one fails; returns that error.
    pub fn each(
        &self,
        mut act: impl FnMut(&SendRequest<'_>, Destination) -> Result<(), PostError>,
    ) -> Option<c_int> {
        self.requests.iter().find_map(|request| {
            let inline: [&[u8]; 1];
            let data = match &request.data {
                LocalData::Sges { from, len } => Data::Sges(&self.sges[*from..from + len]),
                LocalData::Inline { from, len } => {
                    inline = [&self.inline[*from..from + len]];
                    Data::Inline(&inline)
                }
            };
            let Request { wr_id, op, flags, to, .. } = *request;
            act(&SendRequest { wr_id, op, data, flags }, to).err().map(errno::of_post)
        })
    }

    /// Sets the data of the request under construction.
    pub fn set_data(&mut self, data: LocalData) {
        match self.requests.last_mut() {
            Some(request) => request.data = data,
            None => self.fail(libc::EINVAL),
        }
    }

    /// Sets inline data of at most `most` bytes for the request under construction.
    pub fn set_inline<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>, most: u32) {
        let from = self.inline.len();
        for part in parts {
            self.inline.extend_from_slice(part);
        }
        let len = self.inline.len() - from;
        if len > most as usize {
            return self.fail(libc::EINVAL);
        }
        self.set_data(LocalData::Inline { from, len });
    }
}
