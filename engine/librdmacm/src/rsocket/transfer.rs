//! Sending and receiving on a stream socket.

use std::ffi::c_int;

use super::gather::Gather;
use super::mapped_buffers::Announcement;
use super::socket::{Inner, StreamSocket};
use super::stream::Pieces;
use super::wait::lock;

/// Whether a transfer can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Data can be transferred.
    Go,
    /// The direction is closed.
    Ended,
}

fn may_send(inner: &mut Inner) -> Option<Turn> {
    let Some(link) = inner.link() else { return Some(Turn::Ended) };
    if !link.stream.is_writable() {
        return Some(Turn::Ended);
    }
    link.can_send().then_some(Turn::Go)
}

fn may_receive(inner: &mut Inner) -> Option<Turn> {
    let Some(link) = inner.link() else { return Some(Turn::Ended) };
    if link.stream.has_data() {
        return Some(Turn::Go);
    }
    (!link.stream.is_readable()).then_some(Turn::Ended)
}

/// Returns the number of bytes transferred, or the error if there were none.
fn partial_result(done: usize, result: Result<(), c_int>) -> Result<usize, c_int> {
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

impl StreamSocket {
    /// Sends the program's bytes. Returns their number; fewer than all only for a nonblocking call
    /// or if the connection ends.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn send(&self, mut from: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.sending);
        let all = from.left();
        let sent = self.announce_mappings(nonblocking).and_then(|()| {
            let mut pieces = Pieces::default();
            while from.left() > 0 {
                self.wait(nonblocking, |inner| {
                    may_send(inner).map(|turn| match (turn, inner.link()) {
                        // SAFETY: the memory in `from` is readable.
                        (Turn::Go, Some(link)) => unsafe { link.send(&mut from, &mut pieces) },
                        _ => Err(libc::ECONNRESET),
                    })
                })??;
            }
            Ok(())
        });
        partial_result(all - from.left(), sent)
    }

    /// Writes the program's bytes into the buffer that the peer has mapped at `offset`. Returns
    /// their number.
    ///
    /// # Safety
    /// The memory in `from` is readable.
    pub unsafe fn write_mapped(
        &self,
        mut from: Gather<'_>,
        mut offset: u64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.sending);
        let all = from.left();
        let sent = self.announce_mappings(nonblocking).and_then(|()| {
            let mut pieces = Pieces::default();
            while from.left() > 0 {
                let mapped = self.lock().link().and_then(|link| link.mapping(offset));
                let Some(mapping) = mapped else { break };
                let length = self.wait(nonblocking, |inner| {
                    may_send(inner).map(|turn| match (turn, inner.link()) {
                        // SAFETY: the memory in `from` is readable.
                        (Turn::Go, Some(link)) => unsafe {
                            link.send_mapped(&mut from, (offset, &mapping), &mut pieces)
                        },
                        _ => Err(libc::ECONNRESET),
                    })
                })??;
                offset += u64::from(length);
            }
            Ok(())
        });
        partial_result(all - from.left(), sent)
    }

    /// Announces newly mapped buffers to the peer.
    fn announce_mappings(&self, nonblocking: bool) -> Result<(), c_int> {
        while self.lock().mappings.has_unannounced() {
            self.wait(nonblocking, |inner| {
                may_send(inner).map(|turn| {
                    if turn == Turn::Ended {
                        return Err(libc::ECONNRESET);
                    }
                    if let Some(Announcement { index, mapping }) = inner.mappings.next_unannounced()
                        && let Some(link) = inner.link()
                    {
                        link.announce_mapping(index, &mapping);
                    }
                    Ok(())
                })
            })??;
        }
        Ok(())
    }

    /// Receives into the program's memory. Returns the number of bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// EAGAIN, EINTR, ENOTCONN; ECONNRESET if the connection broke.
    ///
    /// # Safety
    /// The memory in `to` is writable.
    pub unsafe fn receive(&self, mut to: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.receiving);
        let all = to.left();
        let received = (|| {
            while to.left() > 0 {
                let turn = self.wait(nonblocking, |inner| {
                    let turn = may_receive(inner)?;
                    if turn == Turn::Ended {
                        return Some(inner.end_of_data());
                    }
                    let link = inner.link()?;
                    if flags & libc::MSG_PEEK != 0 {
                        // SAFETY: the memory in `to` is writable, and at most `length` bytes are
                        // copied.
                        to.fill(|begin, length| unsafe { link.peek(begin, length) });
                    } else {
                        // SAFETY: the memory in `to` is writable, and at most `length` bytes are
                        // copied.
                        to.fill(|begin, length| unsafe { link.read(begin, length) });
                        link.progress(); // grants the freed space to the peer
                    }
                    Some(Ok(Turn::Go))
                })??;
                let all_wanted = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
                if turn == Turn::Ended || !all_wanted {
                    break;
                }
            }
            Ok(())
        })();
        partial_result(all - to.left(), received)
    }
}

impl Inner {
    /// Returns what a read returns when no more data will arrive: end of stream, or ECONNRESET.
    fn end_of_data(&mut self) -> Result<Turn, c_int> {
        let broke = self.link().is_some_and(|link| link.is_broken());
        if broke { Err(libc::ECONNRESET) } else { Ok(Turn::Ended) }
    }
}
