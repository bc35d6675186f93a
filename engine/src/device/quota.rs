//! Limits on the number of objects of one kind that a device has at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::DeviceError;

/// A limit, and the number of objects that exist.
#[derive(Debug)]
pub(super) struct Quota {
    what: &'static str,
    limit: u32,
    used: AtomicU32,
}

/// The place of one object. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place(Arc<Quota>);

impl Quota {
    /// Makes a limit of `limit` objects; errors name them `what`.
    pub(super) fn new(what: &'static str, limit: u32) -> Arc<Self> {
        Arc::new(Self { what, limit, used: AtomicU32::new(0) })
    }

    /// Takes a place for a new object.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`] if the limit is reached.
    pub(super) fn take(self: &Arc<Self>) -> Result<Place, DeviceError> {
        let more = |used: u32| (used < self.limit).then(|| used + 1);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|_| DeviceError::Exhausted(self.what))?;
        Ok(Place(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}
