//! Completions and events as async streams for tokio. Needs the feature `tokio`.
//!
//! | stream | of |
//! |---|---|
//! | [`CompletionStream`] | the completions of a [`CompletionQueue`] |
//! | [`EventStream`] | the asynchronous events of a [`Device`] |
//! | [`CmEventStream`] | the events of a [`CmEventQueue`] |
//!
//! Each has a method `next`, and implements `futures_core::Stream` for combinators. `next` is
//! cancel-safe: a future that is dropped before it is ready has taken no item. Make at most one
//! stream of a queue at a time: two would take each other's wake-ups.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cm;
use crate::device::{CmEventQueue, CompletionQueue, Device};
use crate::verbs::{AsyncEvent, Completion, Notify};

/// Watches the descriptor of `queue`.
#[allow(deprecated)] // `register_with_interest` is newer than tokio 1.47, and `unsafe`: the
// descriptor must stay open and unchanged. This one belongs to the queue that the `AsyncFd` owns.
fn watch<Q: AsRawFd>(queue: Q) -> io::Result<AsyncFd<Q>> {
    AsyncFd::with_interest(queue, Interest::READABLE)
}

/// Takes an item, or waits for the descriptor. `take` returns `None` only if the descriptor becomes
/// readable with the next item.
fn poll_take<Q: AsRawFd, T>(
    queue: &AsyncFd<Q>,
    context: &mut Context<'_>,
    take: impl Fn(&Q) -> Option<T>,
) -> Poll<io::Result<T>> {
    // A task that always finds an item must let others run, too.
    let progress = ready!(tokio::task::coop::poll_proceed(context));
    loop {
        if let Some(item) = take(queue.get_ref()) {
            progress.made_progress();
            return Poll::Ready(Ok(item));
        }
        ready!(queue.poll_read_ready(context))?.clear_ready();
    }
}

/// The completions of a completion queue, in order.
///
/// ```
/// use feroce_engine::device::{Device, DeviceConfig, QpInit};
/// use feroce_engine::stream::CompletionStream;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [device, _] = Device::open_pair(&DeviceConfig::default())?;
/// let cq = device.create_cq(64)?;
/// let mut completions = CompletionStream::new(cq.clone())?;
/// let qp = device.alloc_pd().create_qp(&QpInit::new(&cq))?;
/// // ... connect, post requests, then:
/// tokio::select! {
///     completion = completions.next() => println!("{:?}", completion?),
///     () = tokio::time::sleep(std::time::Duration::from_millis(1)) => println!("none so far"),
/// }
/// # drop(qp);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompletionStream {
    queue: AsyncFd<CompletionQueue>,
}

impl CompletionStream {
    /// Makes a stream of the completions of `queue`. Other handles to the queue may post, resize
    /// and moderate; they must neither poll nor request notifications.
    ///
    /// # Errors
    /// `InvalidInput` if the queue was made by [`Device::create_cq_waking`]; otherwise, when no
    /// descriptor is left, or the runtime cannot watch it.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    pub fn new(queue: CompletionQueue) -> io::Result<Self> {
        if queue.has_waker() {
            let why = "the completion queue notifies its waker, not its descriptor";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        queue.open_fd().map_err(io::Error::other)?;
        Ok(Self { queue: watch(queue)? })
    }

    /// Returns the completion queue, for example to make a QP that completes to it.
    pub fn queue(&self) -> &CompletionQueue {
        self.queue.get_ref()
    }

    /// Waits for the next completion. If none is queued, drives the device as
    /// [`CompletionQueue::poll`] does before it waits, so that posted requests leave at once.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    pub async fn next(&mut self) -> io::Result<Completion> {
        poll_fn(|context| self.poll_one(context)).await
    }

    fn poll_one(&self, context: &mut Context<'_>) -> Poll<io::Result<Completion>> {
        poll_take(&self.queue, context, |queue| {
            queue.poll_one().or_else(|| {
                queue.request_notify(Notify::Any);
                queue.pop() // A completion may have arrived before the request.
            })
        })
    }
}

/// Never ends. After an error, each further item is an error.
impl Stream for CompletionStream {
    type Item = io::Result<Completion>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(context).map(Some)
    }
}

/// The asynchronous events of a device, in order.
#[derive(Debug)]
pub struct EventStream {
    device: AsyncFd<Device>,
}

impl EventStream {
    /// Makes a stream of the events of `device`, which must have no event sink. Other handles to
    /// the device must not poll for events.
    ///
    /// # Errors
    /// When the runtime cannot watch the descriptor.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    pub fn new(device: Device) -> io::Result<Self> {
        Ok(Self { device: watch(device)? })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    pub async fn next(&mut self) -> io::Result<AsyncEvent> {
        poll_fn(|context| poll_take(&self.device, context, Device::poll_event)).await
    }
}

/// Never ends. After an error, each further item is an error.
impl Stream for EventStream {
    type Item = io::Result<AsyncEvent>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_take(&self.device, context, Device::poll_event).map(Some)
    }
}

/// The events of communication management, in order.
#[derive(Debug)]
pub struct CmEventStream {
    queue: AsyncFd<CmEventQueue>,
}

impl CmEventStream {
    /// Makes a stream of the events of `queue`. Other handles to the queue must not poll it.
    ///
    /// # Errors
    /// When the runtime cannot watch the descriptor.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    pub fn new(queue: CmEventQueue) -> io::Result<Self> {
        Ok(Self { queue: watch(queue)? })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    pub async fn next(&mut self) -> io::Result<cm::Event> {
        poll_fn(|context| poll_take(&self.queue, context, CmEventQueue::poll_event)).await
    }
}

/// Never ends. After an error, each further item is an error.
impl Stream for CmEventStream {
    type Item = io::Result<cm::Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_take(&self.queue, context, CmEventQueue::poll_event).map(Some)
    }
}
