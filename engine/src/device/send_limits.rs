//! Limits of a QP's send requests, and writing a request into the send queue.

use super::PostError;
use crate::memory::work_ring::WorkProducer;
use crate::qp::sg;
use crate::verbs::{Data, SendRequest, SendWqe};

/// Limits of a QP's send requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendLimits {
    pub(super) max_sge: usize,
    pub(super) max_inline: usize,
}

impl SendLimits {
    /// Returns the length of the request's data if they are within the limits.
    #[inline]
    pub(super) fn check(self, request: &SendRequest<'_>) -> Result<u64, PostError> {
        match request.data {
            Data::Sges(sges) if sges.len() > self.max_sge => Err(PostError::TooManySges),
            Data::Sges(sges) => Ok(sg::total(sges)),
            Data::Inline(_) if request.op.returns_data() => Err(PostError::InlineNotAllowed),
            Data::Inline(parts) => match parts.iter().map(|part| part.len()).sum::<usize>() {
                length if length > self.max_inline => Err(PostError::InlineTooLong),
                length => Ok(length as u64),
            },
        }
    }

    /// Writes `request` into `sq`, in the entry format that `wrap` makes. Returns false if the
    /// queue is full.
    #[inline]
    pub(super) fn push<T: Copy>(
        self,
        sq: &mut WorkProducer<T>,
        request: &SendRequest<'_>,
        wrap: impl FnOnce(SendWqe) -> Result<T, PostError>,
    ) -> Result<bool, PostError> {
        let length = self.check(request)?;
        let mut wqe = SendWqe::new(request.wr_id, request.op, length, request.flags);
        let pushed = match request.data {
            Data::Sges(sges) => {
                wqe.num_sge = u8::try_from(sges.len()).expect("at most 16");
                sq.push(&wrap(wqe)?, sges)
            }
            Data::Inline(parts) => {
                wqe.inline = true;
                sq.push_inline(&wrap(wqe)?, parts)
            }
        };
        Ok(pushed)
    }
}
