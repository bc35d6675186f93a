//! A response that was sent in a replay.

/// A response, as the captured responder would have sent it.
#[derive(Debug)]
pub struct SentResponse {
    /// Index of the request that caused it.
    pub after: usize,
    /// Index of the last request sent before it.
    pub until: usize,
    /// The frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
}
